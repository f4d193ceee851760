package cm

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/gorxe/gorxe/bth"
)

var (
	gidA = bth.GIDFromIPv4([4]byte{10, 77, 0, 1})
	gidB = bth.GIDFromIPv4([4]byte{10, 77, 0, 2})
	gidC = bth.GIDFromIPv4([4]byte{10, 77, 0, 3})
)

const (
	guidA GUID = 0xa
	guidB GUID = 0xb
	port       = 7174
)

// end is a CM in a test's hands, and what its user heard.
type end struct {
	t    testing.TB
	m    *CM
	gid  bth.GID
	seen []Event
}

func newEnd(t testing.TB, gid bth.GID, guid GUID, seed uint64, change ...func(*Config)) *end {
	t.Helper()
	c := Config{GUID: guid, Rand: rand.New(rand.NewPCG(seed, uint64(guid))).Uint64}
	for _, f := range change {
		f(&c)
	}
	m, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return &end{t: t, m: m, gid: gid}
}

// pair is two ends: a connects to b's listener.
func pair(t testing.TB) (a, b *end) {
	a, b = newEnd(t, gidA, guidA, 1), newEnd(t, gidB, guidB, 2)
	b.listen()
	return a, b
}

func (e *end) listen() ListenerID {
	e.t.Helper()
	id, err := e.m.Listen(ListenParams{Service: TCPService(port)})
	if err != nil {
		e.t.Fatal(err)
	}
	return id
}

func (e *end) params(to *end) *ConnectParams {
	return &ConnectParams{
		Local: e.gid, Remote: to.gid, Service: TCPService(port), SourcePort: 999, QPN: 0x111, PSN: 0x123456, MTU: 1024,
		ResponderResources: 4, InitiatorDepth: 2, RetryCount: 7, RNRRetry: 6, AckTimeout: 14, PrivateData: []byte("hello"),
	}
}

func (e *end) connect(now Time, to *end) CommID {
	e.t.Helper()
	id, err := e.m.Connect(now, e.params(to))
	e.must(err)
	return id
}

var acceptance = AcceptParams{QPN: 0x222, PSN: 0x654321, ResponderResources: 2, InitiatorDepth: 4, RNRRetry: 5, PrivateData: []byte("welcome")}

func (e *end) must(err error) {
	e.t.Helper()
	if err != nil {
		e.t.Fatal(err)
	}
}

// event polls an event, which has to be of this kind.
func (e *end) event(k EventKind) Event {
	e.t.Helper()
	ev, ok := e.m.PollEvent()
	if !ok || ev.Kind != k {
		e.t.Fatalf("event %v, want %v", ev.Kind, k)
	}
	e.seen = append(e.seen, ev)
	return ev
}

// quiet says that no event waits.
func (e *end) quiet() {
	e.t.Helper()
	if ev, ok := e.m.PollEvent(); ok {
		e.t.Fatalf("unexpected event %v", ev.Kind)
	}
}

// sends polls all MADs, which have to be these.
func (e *end) sends(attrs ...Attribute) []MAD {
	e.t.Helper()
	mads := e.drain()
	var got []Attribute
	for i := range mads {
		got = append(got, mads[i].Attribute())
	}
	if !slices.Equal(got, attrs) {
		e.t.Fatalf("%v sends %v, want %v", e.gid, got, attrs)
	}
	return mads
}

func (e *end) drain() (mads []MAD) {
	var m MAD
	for {
		if _, ok := e.m.PollTransmit(0, m[:]); !ok {
			return mads
		}
		mads = append(mads, m)
	}
}

// hears feeds MADs that come from another end.
func (e *end) hears(now Time, from *end, mads ...MAD) {
	e.t.Helper()
	for i := range mads {
		if err := e.m.HandleMAD(now, Addr{GIDPair: bth.GIDPair{Local: e.gid, Remote: from.gid}, QPN: 1, PKey: bth.DefaultPKey}, mads[i][:]); err != nil {
			e.t.Fatal(err)
		}
	}
}

// inState checks the connection's state.
func (e *end) inState(id CommID, s State) {
	e.t.Helper()
	if got := e.m.State(id); got != s {
		e.t.Fatalf("%v: state %v, want %v", e.gid, got, s)
	}
}

// until lets the time pass and fires all timers, however often they are armed again; it returns the
// time and what was sent.
func (e *end) until(now Time, stop func() bool) (Time, []MAD) {
	e.t.Helper()
	var mads []MAD
	for range 1000 {
		mads = append(mads, e.drain()...)
		if stop() {
			return now, mads
		}
		next, ok := e.m.NextTimeout()
		if !ok {
			e.t.Fatal("nothing more will happen")
		}
		if next < now {
			next = now
		}
		now = next
		e.m.HandleTimeout(now)
	}
	e.t.Fatal("timers without end")
	return 0, nil
}

func (e *end) idle() bool { _, ok := e.m.NextTimeout(); return !ok }

// empty says that nothing is left behind.
func (e *end) empty() {
	e.t.Helper()
	s := e.m.Sizes()
	s.Listeners = 0
	if s != (Sizes{}) {
		e.t.Fatalf("%v holds %+v", e.gid, s)
	}
	for k := range e.m.ages {
		if e.m.ages[k].n != 0 || e.m.ages[k].head != nil {
			e.t.Fatalf("%v: age list %d holds %d", e.gid, k, e.m.ages[k].n)
		}
	}
	for _, l := range e.m.listeners {
		if l.pending.total != 0 || len(l.pending.held) != 0 {
			e.t.Fatalf("%v: listener holds %+v", e.gid, l.pending)
		}
	}
}

// establish makes a connection; the two IDs name it.
func establish(now Time, a, b *end) (ia, ib CommID) {
	a.t.Helper()
	ia = a.connect(now, b)
	b.hears(now, a, a.sends(AttrREQ)...)
	ib = b.event(EventConnectRequest).ID
	b.must(b.m.Accept(now, ib, &acceptance))
	a.hears(now, b, b.sends(AttrREP)...)
	a.event(EventConnectResponse)
	a.must(a.m.Ready(now, ia, nil))
	b.hears(now, a, a.sends(AttrRTU)...)
	b.event(EventEstablished)
	a.inState(ia, StateEstablished)
	b.inState(ib, StateEstablished)
	return ia, ib
}

// trace says in words what an end did: states, what was sent, events.
func trace(mads []MAD, events []Event) string {
	var s []string
	for i := range mads {
		w := mads[i].Attribute().String()
		if w == "REJ" {
			var j REJ
			j.Decode(&mads[i])
			w = fmt.Sprintf("REJ%d", j.Reason)
		}
		s = append(s, w)
	}
	for _, e := range events {
		s = append(s, e.Kind.String())
	}
	return strings.Join(s, " ")
}
