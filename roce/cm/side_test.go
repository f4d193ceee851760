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

// side is a CM, with the events that its user has polled.
type side struct {
	t    testing.TB
	m    *CM
	gid  bth.GID
	seen []Event
}

func newSide(t testing.TB, gid bth.GID, guid GUID, seed uint64, change ...func(*Config)) *side {
	t.Helper()
	c := Config{GUID: guid, Rand: rand.New(rand.NewPCG(seed, uint64(guid))).Uint64}
	for _, f := range change {
		f(&c)
	}
	m, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return &side{t: t, m: m, gid: gid}
}

// pair returns two sides. b listens.
func pair(t testing.TB) (a, b *side) {
	a, b = newSide(t, gidA, guidA, 1), newSide(t, gidB, guidB, 2)
	b.listen()
	return a, b
}

func (e *side) listen() ListenerID {
	e.t.Helper()
	id, err := e.m.Listen(ListenParams{Service: TCPService(port)})
	if err != nil {
		e.t.Fatal(err)
	}
	return id
}

func (e *side) params(to *side) *ConnectParams {
	return &ConnectParams{
		Local: e.gid, Remote: to.gid, Service: TCPService(port), SourcePort: 999, QPN: 0x111,
		PSN: 0x123456, MTU: 1024,
		ResponderResources: 4, InitiatorDepth: 2, RetryCount: 7, RNRRetry: 6, AckTimeout: 14,
		PrivateData: []byte("hello"),
	}
}

func (e *side) connect(now Time, to *side) CommID {
	e.t.Helper()
	id, err := e.m.Connect(now, e.params(to))
	e.must(err)
	return id
}

var acceptance = AcceptParams{QPN: 0x222, PSN: 0x654321, ResponderResources: 2, InitiatorDepth: 4,
	RNRRetry: 5, PrivateData: []byte("welcome")}

func (e *side) must(err error) {
	e.t.Helper()
	if err != nil {
		e.t.Fatal(err)
	}
}

// event polls an event, which must be of kind k.
func (e *side) event(k EventKind) Event {
	e.t.Helper()
	ev, ok := e.m.PollEvent()
	if !ok || ev.Kind != k {
		e.t.Fatalf("event %v, want %v", ev.Kind, k)
	}
	e.seen = append(e.seen, ev)
	return ev
}

// quiet checks that there is no event.
func (e *side) quiet() {
	e.t.Helper()
	if ev, ok := e.m.PollEvent(); ok {
		e.t.Fatalf("unexpected event %v", ev.Kind)
	}
}

// sends polls all MADs, which must be of the given types.
func (e *side) sends(attrs ...Attribute) []MAD {
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

func (e *side) drain() (mads []MAD) {
	var m MAD
	for {
		if _, ok := e.m.PollTransmit(0, m[:]); !ok {
			return mads
		}
		mads = append(mads, m)
	}
}

// hears passes MADs from another side to the CM.
func (e *side) hears(now Time, from *side, mads ...MAD) {
	e.t.Helper()
	for i := range mads {
		if err := e.m.HandleMAD(now,
			Addr{GIDPair: bth.GIDPair{Local: e.gid, Remote: from.gid}, QPN: 1,
				PKey: bth.DefaultPKey}, mads[i][:]); err != nil {
			e.t.Fatal(err)
		}
	}
}

// inState checks the state of a connection.
func (e *side) inState(id CommID, s State) {
	e.t.Helper()
	if got := e.m.State(id); got != s {
		e.t.Fatalf("%v: state %v, want %v", e.gid, got, s)
	}
}

// until advances the time to each timer until stop returns true. It returns the time and the MADs
// sent.
func (e *side) until(now Time, stop func() bool) (Time, []MAD) {
	e.t.Helper()
	var mads []MAD
	for range 1000 {
		mads = append(mads, e.drain()...)
		if stop() {
			return now, mads
		}
		next, ok := e.m.NextTimeout()
		if !ok {
			e.t.Fatal("no timer runs, but the condition is not met")
		}
		if next < now {
			next = now
		}
		now = next
		e.m.HandleTimeout(now)
	}
	e.t.Fatal("the condition is not met after 1000 timers")
	return 0, nil
}

func (e *side) idle() bool { _, ok := e.m.NextTimeout(); return !ok }

// empty checks that the CM holds nothing any more.
func (e *side) empty() {
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

// establish establishes a connection and returns both IDs.
func establish(now Time, a, b *side) (ia, ib CommID) {
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

// trace returns the types of MADs and the kinds of events, as text.
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
