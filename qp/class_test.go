package qp

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/mr"
)

// classWorld is a world in which tests take the packets of engine 0 one by one. Its QPs have names.
type classWorld struct {
	*world
	names map[bth.QPN]string // by the QPN of the peer
	peers map[string]*QP
}

type classConfigs = [NumClasses]ClassConfig

func newClassWorld(t testing.TB, configs classConfigs) *classWorld {
	t.Helper()
	return classWorldWith(t, func(c *Config) { c.Classes = configs })
}

func classWorldWith(t testing.TB, change func(*Config)) *classWorld {
	t.Helper()
	w := newWorld(t, 1, change)
	return &classWorld{world: w, names: map[bth.QPN]string{}, peers: map[string]*QP{}}
}

// pair creates a QP of engine 0 with a path MTU of 1024, and its peer, both of the class.
func (c *classWorld) pair(name string, typ Type, class uint8,
	change ...func(*InitAttr, *Attr)) *QP {
	c.t.Helper()
	a, b := c.world.pair(typ, change...)
	c.names[b.QPN()], c.peers[name] = name, b
	for _, q := range []*QP{a, b} {
		must(c.t, q.Modify(c.now, &Attr{Class: class}, AttrClass))
	}
	return a
}

// write posts WRITEs of these lengths.
func (c *classWorld) write(q *QP, lengths ...int) {
	c.t.Helper()
	for _, n := range lengths {
		addr, key := c.ends[1].remote(0)
		c.post(q, SendWR{Op: OpWrite, Flags: Signaled, SGEs: []SGE{c.ends[0].sge(0, n)},
			RemoteAddr: addr, RKey: key})
	}
	c.ends[0].HandleDoorbells(c.now)
}

// one sends the next packet of engine 0 and returns it with the name of its QP; nil: there is none.
func (c *classWorld) one() (*bth.Packet, string) {
	c.t.Helper()
	var buf [8192]byte
	e := c.ends[0]
	if !e.HasTransmit(c.now) {
		return nil, ""
	}
	tx := e.PollTransmit(c.now, buf[:])
	if tx == nil {
		return nil, ""
	}
	copy(buf[tx.PayloadAt:tx.Len], tx.Payload)
	e.Copied()
	data := append([]byte(nil), buf[tx.NetLen:tx.Len]...)
	c.world.send(0, data)
	p := c.parse(0, data)
	name := c.names[p.BTH.DestQP()]
	if p.Info.Op == bth.OpAck {
		name += "!"
	}
	return p, name
}

// take sends up to n packets and returns the names of their QPs, such as "a*3 b": three packets of
// a and one of b. An exclamation mark after the name denotes an ACK or NAK.
func (c *classWorld) take(n int) string {
	c.t.Helper()
	var out []string
	run := 0
	last := ""
	flush := func() {
		switch {
		case run == 1:
			out = append(out, last)
		case run > 1:
			out = append(out, fmt.Sprintf("%s*%d", last, run))
		}
	}
	for range n {
		p, name := c.one()
		if p == nil {
			break
		}
		if name != last {
			flush()
			run, last = 0, name
		}
		run++
	}
	flush()
	return strings.Join(out, " ")
}

func (c *classWorld) sends(n int, want string) {
	c.t.Helper()
	if got := c.take(n); got != want {
		c.t.Fatalf("sent %q, want %q", got, want)
	}
}

const all = 10_000

// hear delivers what the peer sends until nothing is on the way. Engine 0 sends nothing meanwhile.
func (c *classWorld) hear() {
	c.t.Helper()
	for len(c.wire) > 0 || c.pump(1) || c.ends[1].ReleaseAcks() {
		if len(c.wire) == 0 {
			continue
		}
		f := c.wire[0]
		c.wire = c.wire[1:]
		c.now = max(c.now, f.at)
		c.ends[f.to].HandlePacket(c.now, c.parse(1-f.to, f.data))
		c.ends[1].HandleTimeout(c.now)
	}
	c.collect()
}

func TestClassPriority(t *testing.T) {
	c := newClassWorld(t, classConfigs{})
	bulk, mid, urgent := c.pair("bulk", UC, 0), c.pair("mid", UC, 3), c.pair("urgent", UC, 7)
	c.write(bulk, 8<<10)
	c.sends(3, "bulk*3")
	c.write(mid, 4<<10)
	c.sends(1, "mid")
	c.write(urgent, 1, 1, 1)
	c.sends(4, "urgent*3 mid")
	c.write(urgent, 2000)
	c.sends(all, "urgent*2 mid*2 bulk*5")
	got := c.ends[0].ClassCounters()
	want := [NumClasses]ClassCounters{0: {8, 8 << 10, 1}, 3: {4, 4 << 10, 2}, 7: {5, 2003, 0}}
	if got != want {
		t.Errorf("ClassCounters() = %v, want %v", got, want)
	}
}

func TestPreemptionPoints(t *testing.T) {
	for _, test := range []struct {
		preempt int
		want    string // an urgent packet is posted after each packet of bulk
	}{
		{0, "bulk urgent bulk urgent bulk urgent bulk urgent bulk urgent bulk urgent bulk urgent bulk urgent"},
		{1, "bulk urgent bulk urgent bulk urgent bulk urgent bulk urgent bulk urgent bulk urgent bulk urgent"},
		{3 << 10, "bulk*3 urgent*3 bulk*3 urgent*3 bulk*2 urgent*2"},
		{2<<10 + 1, "bulk*3 urgent*3 bulk*3 urgent*3 bulk*2 urgent*2"},
		{5 << 10, "bulk*5 urgent*5 bulk*3 urgent*3"},
		{PreemptAtEnd, "bulk*8 urgent*8"},
	} {
		t.Run(fmt.Sprint(test.preempt), func(t *testing.T) {
			c := newClassWorld(t, classConfigs{1: {Preempt: test.preempt}})
			bulk, urgent := c.pair("bulk", UC, 1), c.pair("urgent", UC, 2)
			c.write(bulk, 8<<10)
			var got []string
			for {
				p, name := c.one()
				if p == nil {
					break
				}
				if name == "bulk" {
					c.write(urgent, 100)
				}
				got = append(got, name)
			}
			if got := shorten(got); got != test.want {
				t.Errorf("sent %q, want %q", got, test.want)
			}
		})
	}
}

// shorten writes repeated names as in take.
func shorten(names []string) string {
	var out []string
	for i := 0; i < len(names); {
		n := 1
		for i+n < len(names) && names[i+n] == names[i] {
			n++
		}
		if n == 1 {
			out = append(out, names[i])
		} else {
			out = append(out, fmt.Sprintf("%s*%d", names[i], n))
		}
		i += n
	}
	return strings.Join(out, " ")
}

// A preempted QP continues with the rest of its quantum, before the others of its class.
func TestPreemptedQPKeepsItsTurn(t *testing.T) {
	for _, class := range []uint8{0, 2} {
		t.Run(fmt.Sprint(class), func(t *testing.T) {
			order := func(interrupt bool) []string {
				c := newClassWorld(t, classConfigs{})
				a, b := c.pair("a", UC, class), c.pair("b", UC, class)
				urgent := c.pair("urgent", UC, 7)
				c.write(a, 40<<10)
				c.write(b, 40<<10)
				var got []string
				for i := 0; ; i++ {
					if interrupt && i%5 == 3 {
						c.write(urgent, 10)
						c.sends(1, "urgent")
					}
					p, name := c.one()
					if p == nil {
						return got
					}
					got = append(got, name)
				}
			}
			quiet, interrupted := shorten(order(false)), shorten(order(true))
			const want = "a*15 b*15 a*15 b*15 a*10 b*10"
			if quiet != want || interrupted != want {
				t.Errorf("sent %q, interrupted %q, want %q", quiet, interrupted, want)
			}
		})
	}
}

// With Preempt, the turn of a QP ends at a preemption point, so that parts stay together.
func TestTurnEndsAtPreemptionPoint(t *testing.T) {
	c := newClassWorld(t, classConfigs{1: {Preempt: 20 << 10}, 2: {Preempt: PreemptAtEnd}})
	a, b := c.pair("a", UC, 1), c.pair("b", UC, 1)
	x, y := c.pair("x", UC, 2), c.pair("y", UC, 2)
	c.write(a, 30<<10)
	c.write(b, 30<<10)
	c.write(x, 30<<10, 2<<10)
	c.write(y, 30<<10)
	c.sends(all, "x*30 y*30 x*2 a*20 b*20 a*10 b*10")
}

func TestFIFOOrder(t *testing.T) {
	for _, test := range []struct {
		name    string
		lengths []int
	}{
		{"one packet", []int{100}},
		{"3 tasks x 4 messages", []int{4 << 10}},
		{"mixed", []int{1, 9000, 1024, 40 << 10, 0, 2049, 17}},
	} {
		for _, class := range []uint8{0, 4} {
			t.Run(fmt.Sprint(test.name, ", class ", class), func(t *testing.T) {
				var configs classConfigs
				configs[class].Order = FIFO
				c := newClassWorld(t, configs)
				qs := map[string]*QP{}
				for _, name := range []string{"a", "b", "c"} {
					qs[name] = c.pair(name, UC, class)
				}
				var want []string
				for i := range 12 {
					name := string(rune('a' + i%3))
					n := test.lengths[i%len(test.lengths)]
					c.write(qs[name], n)
					for range max(1, (n+1023)/1024) {
						want = append(want, name)
					}
				}
				var got []string
				for p, name := c.one(); p != nil; p, name = c.one() {
					got = append(got, name)
				}
				if shorten(got) != shorten(want) {
					t.Errorf("sent %q, want %q", shorten(got), shorten(want))
				}
			})
		}
	}
}

// A QP that cannot send does not block the others of a FIFO class, and is served first when it can
// again.
func TestFIFOPassesBlockedQP(t *testing.T) {
	c := newClassWorld(t, classConfigs{3: {Order: FIFO}})
	a, b := c.pair("a", RC, 3), c.pair("b", RC, 3)
	c.write(a, 70<<10) // more than the window of 64 packets
	c.write(b, 5<<10)
	c.sends(66, "a*64 b*2")
	c.hear()
	c.sends(all, "a*6 b*3")
}

// Local operations do not change the order.
func TestFIFOWithLocalOperations(t *testing.T) {
	c := newClassWorld(t, classConfigs{3: {Order: FIFO}})
	a, b := c.pair("a", RC, 3), c.pair("b", RC, 3)
	e := c.ends[0]
	window, err := e.mrs.AllocWindow(e.pd, mr.Type2)
	must(t, err)
	key, err := e.mrs.NextRKey(window)
	must(t, err)
	c.write(b, 2000)
	c.post(a, SendWR{Op: OpBindMW, RKey: bth.RKey(key), Access: mr.RemoteRead,
		SGEs: []SGE{e.sge(0, 64)}})
	c.write(b, 2000)
	c.write(a, 2000)
	c.write(b, 2000)
	c.sends(all, "b*4 a*2 b*2")
}

// The responses to the peer's READs, ACKs and retransmissions have the class of their QP.
func TestClassOfResponses(t *testing.T) {
	for _, order := range []Order{RoundRobin, FIFO} {
		t.Run(order.String(), func(t *testing.T) {
			c := newClassWorld(t,
				classConfigs{0: {Order: order}, 4: {Order: order}, 6: {Order: order}})
			bulk, q := c.pair("bulk", RC, 0), c.pair("q", RC, 4)
			c.pair("low", RC, 0)
			peer := c.peers["q"]
			c.write(bulk, 50<<10)
			c.sends(2, "bulk*2")

			addr, key := c.ends[0].remote(0)
			c.post(peer, SendWR{Op: OpRead, SGEs: []SGE{c.ends[1].sge(0, 3000)}, RemoteAddr: addr,
				RKey: key})
			c.hear()
			c.sends(5, "q*3 bulk*2")

			c.post(peer, SendWR{Op: OpWrite, Flags: Signaled, SGEs: []SGE{c.ends[1].sge(0, 10)},
				RemoteAddr: addr, RKey: key})
			c.hear()
			c.sends(3, "q! bulk*2")

			lose := true
			c.filter = func(from int, p *bth.Packet) bool {
				lost := lose && from == 0 && c.names[p.BTH.DestQP()] == "q"
				lose = lose && !lost
				return !lost
			}
			c.write(q, 3000)
			c.sends(5, "q*3 bulk*2")
			c.hear() // a NAK
			c.sends(5, "q*3 bulk*2")

			// In class 0, the ACK waits for the quantum of bulk, or is the oldest.
			c.post(c.peers["low"], SendWR{Op: OpWrite, Flags: Signaled,
				SGEs: []SGE{c.ends[1].sge(0, 10)}, RemoteAddr: addr, RKey: key})
			c.hear()
			c.now += ackSoon
			want := map[Order]string{RoundRobin: "bulk*5 low! bulk*35", FIFO: "low! bulk*40"}
			c.sends(all, want[order])
		})
	}
}

// READ responses are messages, too.
func TestPreemptionOfReadResponses(t *testing.T) {
	for preempt, want := range map[int]string{
		0: "urgent q*2", 2048: "q urgent q", PreemptAtEnd: "q*2 urgent",
	} {
		c := newClassWorld(t, classConfigs{4: {Preempt: preempt}})
		c.pair("q", RC, 4)
		urgent := c.pair("urgent", UC, 6)
		addr, key := c.ends[0].remote(0)
		c.post(c.peers["q"], SendWR{Op: OpRead, SGEs: []SGE{c.ends[1].sge(0, 3000)},
			RemoteAddr: addr, RKey: key})
		c.hear()
		c.sends(1, "q")
		c.write(urgent, 10)
		if got := c.take(all); got != want {
			t.Errorf("Preempt = %d: sent %q, want %q", preempt, got, want)
		}
	}
}

// Requested ACKs are sent at once above class 0.
func TestPromptACKs(t *testing.T) {
	for class := range uint8(2) {
		c := newClassWorld(t, classConfigs{})
		c.pair("q", RC, class)
		c.pair("other", RC, 1)
		addr, key := c.ends[0].remote(0)
		c.post(c.peers["q"], SendWR{Op: OpWrite, Flags: Signaled,
			SGEs: []SGE{c.ends[1].sge(0, 10)}, RemoteAddr: addr, RKey: key})
		c.hear()
		c.sends(1, []string{"", "q!"}[class])
		c.now += ackSoon
		c.sends(1, []string{"q!", ""}[class])
	}
}

func TestBacklogLimit(t *testing.T) {
	c := newClassWorld(t, classConfigs{1: {Preempt: 2 << 10}})
	e := c.ends[0]
	if e.Bounded() || e.TopClass() != 0 {
		t.Errorf("without QPs: Bounded() = %v, TopClass() = %d", e.Bounded(), e.TopClass())
	}
	bulk := c.pair("bulk", UC, 0)
	if e.Bounded() {
		t.Error("Bounded() = true with class 0 alone")
	}
	e.SetBacklogged(true) // without effect
	c.write(bulk, 2000)
	c.sends(all, "bulk*2")
	part, top := c.pair("part", UC, 1), c.pair("top", UC, 5)
	if !e.Bounded() || e.TopClass() != 5 {
		t.Errorf("Bounded() = %v, TopClass() = %d, want true, 5", e.Bounded(), e.TopClass())
	}
	c.write(bulk, 5<<10)
	c.sends(1, "bulk")
	e.SetBacklogged(true)
	if c.sends(all, ""); e.HasTransmit(c.now) || !e.Idle() {
		t.Errorf("backlogged: HasTransmit() = %v, Idle() = %v", e.HasTransmit(c.now), e.Idle())
	}
	c.write(top, 3<<10)
	c.sends(all, "top*3")
	c.write(part, 3<<10)
	c.sends(all, "")
	e.SetBacklogged(false)
	if !e.HasTransmit(c.now) || e.Idle() {
		t.Errorf("not backlogged: HasTransmit() = %v, Idle() = %v", e.HasTransmit(c.now), e.Idle())
	}
	c.sends(1, "part")
	e.SetBacklogged(true) // between two preemption points of class 1
	c.write(top, 10)
	if c.sends(all, ""); !e.Idle() {
		t.Error("Idle() = false while a part waits for the backlog")
	}
	e.SetBacklogged(false)
	c.sends(all, "part top part bulk*4")
	e.DestroyQP(top)
	e.DestroyQP(part)
	if e.Bounded() || e.classed {
		t.Errorf("after the QPs of other classes: Bounded() = %v, classed = %v", e.Bounded(),
			e.classed)
	}
}

func TestClassErrors(t *testing.T) {
	bad := []ClassConfig{
		{Order: numOrders}, {Preempt: -2}, {Preempt: MaxMessage + 1}, {Rate: MinRate - 1},
		{Rate: MaxRate + 1}, {Rate: MinRate, Burst: -1}, {Rate: MinRate, Burst: MaxBurst + 1},
		{Burst: 1},
	}
	for _, config := range bad {
		c := Config{MRs: newWorld(t, 1).ends[0].mrs, Rand: func() uint64 { return 1 }}
		c.Classes[5] = config
		if _, err := NewEngine(c); !errors.Is(err, ErrInvalidAttr) ||
			!strings.HasPrefix(err.Error(), "class 5: ") {
			t.Errorf("NewEngine with class %+v: %v", config, err)
		}
	}
	w := newWorld(t, 1)
	q, _ := w.pair(RC)
	for _, a := range []Attr{{Class: 8}, {Class: 255}, {Rate: 1}, {Rate: MaxRate + 1}, {Burst: 1},
		{Rate: 1e6, Burst: -1}} {
		if err := q.Modify(w.now, &a, AttrClass|AttrRate); !errors.Is(err, ErrInvalidAttr) {
			t.Errorf("Modify(%+v): %v, want ErrInvalidAttr", a, err)
		}
	}
	for n, ok := range map[int]bool{-1: false, 0: true, 7: true, 8: false} {
		if err := CheckClass(n); (err == nil) != ok {
			t.Errorf("CheckClass(%d) = %v", n, err)
		}
	}
}

func TestModifyClass(t *testing.T) {
	w := newWorld(t, 1)
	for _, typ := range []Type{RC, UC, UD} {
		a, _ := w.pair(typ)
		must(t, a.Modify(w.now, &Attr{Class: 6, Rate: 5000, Burst: 9}, AttrClass|AttrRate))
		if at := a.Query(); at.Class != 6 || at.Rate != 5000 || at.Burst != 9 || a.Class() != 6 {
			t.Errorf("%s: class %d (%d), rate %d, burst %d, want 6, 5000, 9", typ, at.Class,
				a.Class(), at.Rate, at.Burst)
		}
		must(t, a.Modify(w.now, &Attr{Rate: 0}, AttrRate))
		if at := a.Query(); at.Class != 6 || at.Rate != 0 || at.Burst != 0 || a.cs != nil {
			t.Errorf("%s: class %d, rate %d, burst %d, want 6 and no rate", typ, at.Class, at.Rate,
				at.Burst)
		}
		must(t, a.Modify(w.now, &Attr{State: Err}, AttrState))
		if a.Class() != 6 || a.State() != Err {
			t.Errorf("%s: class %d in %s, want 6 in ERR", typ, a.Class(), a.State())
		}
		must(t, a.Modify(w.now, &Attr{State: Reset}, AttrState))
		if at := a.Query(); at.Class != 0 || at.Rate != 0 || a.State() != Reset {
			t.Errorf("%s: class %d, rate %d in %s, want 0, 0 in RESET", typ, at.Class, at.Rate,
				a.State())
		}
	}
	if e := w.ends[0]; e.used != 1 || e.rated != 0 || e.users[0] != 3 || e.classed {
		t.Errorf("used %b, rated %d, users %v, classed %v after RESET", e.used, e.rated, e.users,
			e.classed)
	}
}
