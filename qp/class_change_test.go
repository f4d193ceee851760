package qp

import "testing"

// What happens to a QP in the middle of a message does not affect others.
func TestPreemptedQPGoesAway(t *testing.T) {
	for _, test := range []struct {
		name string
		do   func(c *classWorld, q *QP)
		want string
	}{
		{"nothing", func(*classWorld, *QP) {}, "urgent q*7 other*2"},
		{"destroyed", func(c *classWorld, q *QP) { c.ends[0].DestroyQP(q) }, "urgent other*2"},
		{"reset", func(c *classWorld, q *QP) {
			must(c.t, q.Modify(c.now, &Attr{State: Reset}, AttrState))
		}, "urgent other*2"},
		{"error", func(c *classWorld, q *QP) {
			must(c.t, q.Modify(c.now, &Attr{State: Err}, AttrState))
		}, "urgent other*2"},
		{"drained", func(c *classWorld, q *QP) { // the message in progress is completed
			must(c.t, q.Modify(c.now, &Attr{State: SQD}, AttrState))
		}, "urgent q*7 other*2"},
		{"lower class", func(c *classWorld, q *QP) {
			must(c.t, q.Modify(c.now, &Attr{Class: 1}, AttrClass))
		}, "urgent other*2 q*7"},
		{"same class", func(c *classWorld, q *QP) {
			must(c.t, q.Modify(c.now, &Attr{Class: 2}, AttrClass))
		}, "urgent q*7 other*2"},
		{"higher class", func(c *classWorld, q *QP) {
			must(c.t, q.Modify(c.now, &Attr{Class: 7}, AttrClass))
		}, "q*7 urgent other*2"},
		{"rate", func(c *classWorld, q *QP) {
			must(c.t, q.Modify(c.now, &Attr{Rate: 1000, Burst: 1}, AttrRate))
		}, "urgent other*2 q"},
	} {
		t.Run(test.name, func(t *testing.T) {
			for _, order := range []Order{RoundRobin, FIFO} {
				for _, typ := range []Type{RC, UC} {
					c := newClassWorld(t, classConfigs{2: {Order: order}, 1: {Order: order}})
					q, other := c.pair("q", typ, 2), c.pair("other", typ, 2)
					urgent := c.pair("urgent", typ, 6)
					c.write(q, 8<<10)
					c.sends(1, "q")
					c.write(other, 2<<10)
					c.write(urgent, 10)
					want := test.want
					if test.do(c, q); order == FIFO && test.name == "rate" {
						want = "urgent q other*2" // there are tokens for a packet
					}
					c.sends(all, want)
					e := c.ends[0]
					if e.holding != nil || (e.ready != 0 && test.name != "rate") {
						t.Errorf("%s, %s: ready %b, holding %p", order, typ, e.ready, e.holding)
					}
					c.hear()
					c.write(other, 10)
					c.sends(all, "other")
				}
			}
		})
	}
}

// A part between two preemption points ends with its QP.
func TestPartEndsWithQP(t *testing.T) {
	for name, end := range map[string]func(c *classWorld, q *QP){
		"destroyed": func(c *classWorld, q *QP) { c.ends[0].DestroyQP(q) },
		"error": func(c *classWorld, q *QP) {
			must(c.t, q.Modify(c.now, &Attr{State: Err}, AttrState))
		},
		"class": func(c *classWorld, q *QP) {
			must(c.t, q.Modify(c.now, &Attr{Class: 1}, AttrClass))
		},
	} {
		c := newClassWorld(t, classConfigs{2: {Preempt: PreemptAtEnd}})
		q, urgent := c.pair("q", UC, 2), c.pair("urgent", UC, 3)
		c.write(q, 8<<10)
		c.sends(1, "q")
		c.write(urgent, 10)
		end(c, q)
		if _, got := c.one(); got != "urgent" {
			t.Errorf("%s: sent a packet of %q, want urgent", name, got)
		}
	}
	// A QP whose window is full is no obstacle either.
	c := newClassWorld(t, classConfigs{2: {Preempt: PreemptAtEnd}})
	q, urgent := c.pair("q", RC, 2), c.pair("urgent", UC, 3)
	c.write(q, 70<<10)
	c.sends(64, "q*64")
	c.write(urgent, 10)
	c.sends(all, "urgent")
}

// Classes come into use and out of use while QPs have packets to send.
func TestClassesComeAndGo(t *testing.T) {
	c := newClassWorld(t, classConfigs{})
	e := c.ends[0]
	a, b := c.pair("a", UC, 0), c.pair("b", UC, 0)
	c.write(a, 20<<10)
	c.write(b, 20<<10)
	c.sends(5, "a*5")
	urgent := c.pair("urgent", UC, 1)
	c.write(urgent, 10)
	if !e.classed {
		t.Error("classed = false with two classes")
	}
	c.sends(3, "urgent a*2")
	e.DestroyQP(urgent)
	if e.classed {
		t.Error("classed = true with class 0 alone")
	}
	c.sends(10, "a*8 b*2")
	must(t, b.Modify(c.now, &Attr{Rate: 1000, Burst: 1}, AttrRate))
	c.sends(all, "a*5 b")
	if next, ok := e.NextTimeout(); !ok || next < c.now+second || next > c.now+2*second {
		t.Errorf("NextTimeout() = %d, %v at %d, want it in 1.1 s", next, ok, c.now)
	}
	must(t, b.Modify(c.now, &Attr{}, AttrRate))
	if e.classed {
		t.Error("classed = true without a rate")
	}
	c.sends(all, "b*17")
}

// Work requests that were posted before a QP joined a FIFO class are served in the order in which
// the QPs joined.
func TestJoinFIFOClass(t *testing.T) {
	c := newClassWorld(t, classConfigs{4: {Order: FIFO}})
	a, b := c.pair("a", UC, 0), c.pair("b", UC, 0)
	c.write(a, 10, 10)
	c.write(b, 10, 10)
	for _, q := range []*QP{b, a} {
		must(t, q.Modify(c.now, &Attr{Class: 4}, AttrClass))
	}
	c.write(b, 10)
	c.sends(all, "b*2 a*2 b")
}

// The classes need no allocations in steady state.
func TestClassesDoNotAllocate(t *testing.T) {
	c := newClassWorld(t,
		classConfigs{0: {Order: FIFO}, 5: {Rate: 1e9, Preempt: 2000}, 6: {Order: FIFO}})
	e := c.ends[0]
	var qs []*QP
	for i := range 16 {
		q := c.pair(string(rune('a'+i)), UC, uint8(i%8))
		if i%3 == 0 {
			must(t, q.Modify(c.now, &Attr{Rate: 1e8}, AttrRate))
		}
		qs = append(qs, q)
	}
	addr, key := c.ends[1].remote(0)
	wrs := []SendWR{{Op: OpWrite, SGEs: []SGE{e.sge(0, 3000)}, RemoteAddr: addr, RKey: key}}
	buf := make([]byte, 8192)
	run := func() {
		for _, q := range qs {
			for range 3 {
				q.PostSend(wrs)
			}
		}
		e.HandleDoorbells(c.now)
		for i := 0; i < 500; i++ {
			for e.HasTransmit(c.now) && e.PollTransmit(c.now, buf) != nil {
				e.Copied()
			}
			c.now += 10_000
		}
	}
	run()
	if n := testing.AllocsPerRun(100, run); n != 0 {
		t.Errorf("%v allocations", n)
	}
	for i := range qs {
		if qs[i].SQLen() != 0 {
			t.Errorf("QP %d has %d work requests left", i, qs[i].SQLen())
		}
	}
}

// Keepalives count in their class.
func TestClassOfKeepAlive(t *testing.T) {
	c := newClassWorld(t, classConfigs{})
	q := c.pair("q", RC, 3, func(_ *InitAttr, a *Attr) { a.SQPSN, a.RQPSN = 1, 1 })
	if n, _ := q.PutKeepAlive(make([]byte, MinBuffer)); n == 0 {
		t.Fatal("no keepalive")
	}
	if got := c.ends[0].ClassCounters(); got[3].SentPkts != 1 || got[0].SentPkts != 0 {
		t.Errorf("ClassCounters() = %v, want a packet of class 3", got)
	}
}
