package cm

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/gorxe/gorxe/bth"
)

// world is two CMs with random users and a faulty link between them, in virtual time. A run is
// reproducible from its seed.
type world struct {
	t     *testing.T
	r     *rand.Rand
	now   Time
	seq   uint64
	todo  eventQueue
	sides [2]*user
	plan  wirePlan
	qpn   bth.QPN
	ready map[CommID]bool // active connections whose user has called Ready
}

type wirePlan struct {
	loss, duplicate, straggle float64
	connections               int
}

// user is the application of one side.
type user struct {
	*side
	w    *world
	last map[CommID]EventKind // last event of connections that are not closed
	qpns map[CommID]bth.QPN
	c    map[EventKind]int
}

type scheduled struct {
	at  Time
	seq uint64
	do  func()
}

type eventQueue []scheduled

func (h eventQueue) Len() int { return len(h) }
func (h eventQueue) Less(i, j int) bool {
	return h[i].at < h[j].at || (h[i].at == h[j].at && h[i].seq < h[j].seq)
}
func (h eventQueue) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *eventQueue) Push(x any)   { *h = append(*h, x.(scheduled)) }
func (h *eventQueue) Pop() any {
	last := len(*h) - 1
	x := (*h)[last]
	*h = (*h)[:last]
	return x
}

func (w *world) after(d Time, do func()) {
	w.seq++
	heap.Push(&w.todo, scheduled{w.now + d, w.seq, do})
}

func (w *world) chance(p float64) bool { return w.r.Float64() < p }
func (w *world) upTo(d Time) Time      { return Time(w.r.Int64N(int64(d))) }

// carry delivers a MAD once or twice after a delay, or drops it.
func (w *world) carry(to Addr, m MAD) {
	for copies := 1; copies > 0; copies-- {
		if w.chance(w.plan.duplicate) {
			copies++
		}
		if w.chance(w.plan.loss) {
			continue
		}
		delay := w.upTo(5e6)
		if w.chance(w.plan.straggle) {
			delay += w.upTo(4 * second)
		}
		w.after(delay, func() {
			for _, u := range w.sides {
				if u.gid == to.Remote {
					if err := u.m.HandleMAD(w.now,
						Addr{GIDPair: bth.GIDPair{Local: to.Remote, Remote: to.Local}, QPN: 1,
							PKey: to.PKey}, m[:]); err != nil {
						w.t.Fatal(err)
					}
				}
			}
		})
	}
}

// serve does what the loop does in each step.
func (u *user) serve() {
	u.m.HandleTimeout(u.w.now)
	for ev, ok := u.m.PollEvent(); ok; ev, ok = u.m.PollEvent() {
		u.hear(ev)
	}
	var m MAD
	for to, ok := u.m.PollTransmit(u.w.now, m[:]); ok; to, ok = u.m.PollTransmit(u.w.now, m[:]) {
		if _, err := ParseMAD(m[:]); err != nil {
			u.t.Fatal(err)
		}
		u.w.carry(to, m)
	}
}

// hear checks the order of events and reacts to them as a user might.
func (u *user) hear(ev Event) {
	last, known := u.last[ev.ID]
	first := ev.Kind == EventConnectRequest || ev.Kind == EventSIDRRequest
	if known == first || (known && ev.Kind <= last) ||
		(last >= EventRejected && ev.Kind != EventClosed) {
		u.t.Fatalf("%v, connection %#x: %v after %v", u.gid, ev.ID, ev.Kind, last)
	}
	u.last[ev.ID] = ev.Kind
	u.c[ev.Kind]++
	w, id := u.w, ev.ID
	switch ev.Kind {
	case EventConnectRequest:
		u.think(func() { u.decide(id, ev.Request) })
	case EventSIDRRequest:
		u.think(func() {
			switch x := w.r.Float64(); {
			case x < 0.8:
				_ = u.m.ReplySIDR(w.now, id, &SIDRReply{QPN: 77})
			case x < 0.9:
				_ = u.m.Abort(w.now, id)
			}
		})
	case EventSIDRResponse:
		if r := ev.Reply; r.Status != SIDRRejected && (r.Status != SIDRSuccess || r.QPN != 77) {
			u.t.Fatalf("reply %+v", *r)
		}
	case EventConnectResponse:
		if q := u.other().qpns[u.peerOf(id)]; q != ev.Response.QPN {
			u.t.Fatalf("response with QPN %v of another connection; want %v", ev.Response.QPN, q)
		}
		u.think(func() { u.begin(id) })
	case EventEstablished:
		if !w.ready[u.peerOf(id)] {
			u.t.Fatalf("established, but the peer's user never was ready")
		}
		if w.chance(0.3) {
			w.after(w.upTo(4*second), func() { _ = u.m.Disconnect(w.now, id, nil) })
		}
	case EventDisconnected:
		if w.chance(0.5) {
			_ = u.m.Disconnect(w.now, id, nil)
		}
	case EventClosed:
		delete(u.last, id)
		if u.m.State(id) != StateIdle && u.m.State(id) != StateRefused &&
			u.m.State(id) != StateSIDRREPSent {
			u.t.Fatalf("closed in %v", u.m.State(id))
		}
	}
}

// think lets the user wait before do, usually not at all.
func (u *user) think(do func()) {
	d := Time(0)
	if u.w.chance(0.1) {
		d = u.w.upTo(3 * second)
	}
	u.w.after(d, do)
}

// decide answers a request, except one in twenty.
func (u *user) decide(id CommID, r *Request) {
	w := u.w
	switch x := w.r.Float64(); {
	case x < 0.80:
		p, ok := r.Negotiate(Limits{MTU: 4096, ResponderResources: 1, InitiatorDepth: 1,
			RNRRetry: 7})
		if !ok {
			u.t.Fatal("no agreement")
		}
		w.qpn++
		p.QPN, u.qpns[id] = w.qpn, w.qpn
		_ = u.m.Accept(w.now, id, &p)
		w.after(w.upTo(second), func() { // data arrives before the RTU
			if peer := u.other().m.byID[u.peerOf(id)]; peer != nil && peer.remoteID == id &&
				peer.state == StateEstablished {
				u.m.CommEstablished(w.now, id)
			}
		})
	case x < 0.90:
		_ = u.m.Reject(w.now, id, ReasonConsumer, nil, nil)
	case x < 0.95:
		_ = u.m.Abort(w.now, id)
	}
}

// begin answers a response, and ends the connection later.
func (u *user) begin(id CommID) {
	w := u.w
	switch x := w.r.Float64(); {
	case x < 0.9:
		if u.m.Ready(w.now, id, nil) == nil {
			w.ready[id] = true
		}
	case x < 0.95:
		_ = u.m.Reject(w.now, id, ReasonConsumer, nil, nil)
	default:
		_ = u.m.Abort(w.now, id)
	}
	w.after(w.upTo(5*second), func() {
		if w.chance(0.9) {
			_ = u.m.Disconnect(w.now, id, nil)
		} else {
			_ = u.m.Abort(w.now, id)
		}
	})
}

func (u *user) other() *user {
	if u.w.sides[0] == u {
		return u.w.sides[1]
	}
	return u.w.sides[0]
}

func (u *user) peerOf(id CommID) CommID {
	if c := u.m.byID[id]; c != nil {
		return c.remoteID
	}
	return 0
}

func (u *user) dial() {
	w := u.w
	w.qpn++
	if w.chance(0.1) {
		id, err := u.m.Resolve(w.now,
			&SIDRParams{Local: u.gid, Remote: u.other().gid, Service: UDPService(port)})
		u.must(err)
		u.last[id] = EventNone
		return
	}
	id, err := u.m.Connect(w.now,
		&ConnectParams{Local: u.gid, Remote: u.other().gid, Service: TCPService(port), QPN: w.qpn,
			MTU:                1024,
			ResponderResources: 1, InitiatorDepth: 1, AckTimeout: 17})
	u.must(err)
	u.last[id] = EventNone
	if w.chance(0.03) {
		w.after(w.upTo(second), func() { _ = u.m.Abort(w.now, id) })
	}
}

func runWorld(t *testing.T, seed uint64, plan wirePlan) *world {
	w := &world{t: t, r: rand.New(rand.NewPCG(seed, 7)), plan: plan, qpn: 1,
		ready: map[CommID]bool{}}
	for i, gid := range []bth.GID{gidA, gidB} {
		u := &user{side: newSide(t, gid, GUID(i+1), seed), w: w, last: map[CommID]EventKind{},
			qpns: map[CommID]bth.QPN{}, c: map[EventKind]int{}}
		u.listen()
		_, err := u.m.Listen(ListenParams{Service: UDPService(port)})
		u.must(err)
		w.sides[i] = u
	}
	for i := range plan.connections {
		w.after(Time(i)*1e6, w.sides[w.r.IntN(2)].dial)
	}
	const deadline = 3600 * second
	for steps := 0; ; steps++ {
		next := Never
		if len(w.todo) > 0 {
			next = w.todo[0].at
		}
		for _, u := range w.sides {
			if at, ok := u.m.NextTimeout(); ok {
				next = min(next, at)
			}
		}
		if next == Never {
			break
		}
		if w.now = max(w.now, next); w.now > deadline {
			t.Fatalf("still busy after an hour: %+v, %+v", w.sides[0].m.Sizes(),
				w.sides[1].m.Sizes())
		}
		for len(w.todo) > 0 && w.todo[0].at <= w.now {
			heap.Pop(&w.todo).(scheduled).do()
		}
		for _, u := range w.sides {
			u.serve()
		}
	}
	return w
}

// TestFaultyLink creates and releases thousands of connections in both directions over a link that
// drops, duplicates, reorders and delays. Afterwards neither CM may hold anything.
func TestFaultyLink(t *testing.T) {
	many := 10_000
	if testing.Short() {
		many = 1000
	}
	for seed, plan := range []wirePlan{
		{0, 0, 0, 500},
		{0.10, 0.10, 0.05, many},
		{0.30, 0.05, 0.20, 500},
		{0, 0.50, 0.30, 500},
	} {
		t.Run(fmt.Sprintf("%d over %v", plan.connections, plan), func(t *testing.T) {
			w := runWorld(t, uint64(seed), plan)
			established, closed := 0, 0
			for _, u := range w.sides {
				if len(u.last) != 0 {
					t.Errorf("%v: %d connections never closed", u.gid, len(u.last))
				}
				u.empty()
				established += u.c[EventEstablished]
				closed += u.c[EventClosed]
				for k := EventConnectRequest; k <= EventClosed; k++ {
					if k != EventUnreachable && k != EventSuspect && u.c[k] == 0 {
						t.Errorf("%v: no event %v at all", u.gid, k)
					}
				}
			}
			if established < plan.connections/2 || closed < plan.connections {
				t.Errorf("%d of %d established, %d closed", established, plan.connections, closed)
			}
			t.Logf("%d established, over at %.1f s; %+v", established, float64(w.now)/1e9,
				w.sides[0].m.c)
		})
	}
}

// TestReproducible: the CM depends on nothing but its inputs.
func TestReproducible(t *testing.T) {
	plan := wirePlan{0.1, 0.1, 0.1, 200}
	a, b := runWorld(t, 5, plan), runWorld(t, 5, plan)
	if a.now != b.now || a.seq != b.seq || a.sides[0].m.c != b.sides[0].m.c ||
		a.sides[1].m.c != b.sides[1].m.c {
		t.Error("two runs of one seed differ")
	}
}
