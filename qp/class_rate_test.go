package qp

import (
	"fmt"
	"testing"

	"github.com/gorxe/gorxe/bth"
)

// meter records the frames of QPs and checks them against a token bucket.
type meter struct {
	t     testing.TB
	what  string
	rate  float64 // bytes per second
	burst float64
	full  float64 // bytes that may be sent now, according to an independent computation
	at    Time
	bytes int
	first Time
}

func (m *meter) sent(now Time, n int) {
	m.t.Helper()
	if m.bytes == 0 {
		m.full, m.at, m.first = m.burst, now, now
	}
	m.full = min(m.burst, m.full+float64(now-m.at)*m.rate/1e9)
	m.at = now
	m.full -= float64(n)
	if m.bytes += n; m.full < -1 {
		m.t.Fatalf("%s at %d ns: %.0f bytes more than burst and rate allow", m.what, now, -m.full)
	}
}

// reached checks that the average rate is the configured one to within 1 %.
func (m *meter) reached(now Time) {
	m.t.Helper()
	got := (float64(m.bytes) - m.burst) * 1e9 / float64(now-m.first)
	if got < 0.99*m.rate || got > 1.01*m.rate {
		m.t.Errorf("%s: %.0f bytes per second, want %.0f", m.what, got, m.rate)
	}
}

// frames runs engine 0 until limit. It calls sent with each frame and keeps the queues of UC QPs
// full.
func (c *classWorld) frames(limit Time, lengths map[*QP]int, sent func(name string, n int)) {
	c.t.Helper()
	e := c.ends[0]
	for c.now < limit {
		for q, n := range lengths {
			for q.SQLen() < 4 {
				c.write(q, n)
			}
		}
		var buf [8192]byte
		for e.HasTransmit(c.now) {
			tx := e.PollTransmit(c.now, buf[:])
			if tx == nil {
				break
			}
			e.Copied()
			h := bth.BTH(buf[tx.NetLen:])
			sent(c.names[h.DestQP()], tx.Len+bth.ICRCLen)
			if q := c.byName(c.names[h.DestQP()]); q.SQLen() == 0 {
				c.write(q, lengths[q])
			}
		}
		var wcs [64]WC
		for e.cq.Poll(wcs[:]) > 0 {
		}
		t, ok := e.NextTimeout()
		if !ok || t <= c.now {
			c.t.Fatalf("NextTimeout() = %d, %v at %d with QPs that wait for tokens", t, ok, c.now)
		}
		c.now = min(t, limit)
		e.HandleTimeout(c.now)
	}
}

func (c *classWorld) byName(name string) *QP {
	for _, b := range c.ends[0].table.buckets {
		for _, q := range b.qps {
			if q != nil && c.names[q.destQP] == name {
				return q
			}
		}
	}
	return nil
}

func TestQPRate(t *testing.T) {
	for _, test := range []struct {
		rate  uint64
		burst int
		n     int
	}{
		{1000, 1, 10}, {100_000, 1, 5000}, {1_000_000, 10_000, 700}, {125_000_000, 1, 1 << 20},
		{125_000_000, 0, 30_000}, {122_250_000, 64 << 10, 1}, {3_333_333_333, 9000, 1 << 16},
	} {
		t.Run(fmt.Sprintf("%d, %d, messages of %d", test.rate, test.burst, test.n),
			func(t *testing.T) {
				c := newClassWorld(t, classConfigs{})
				q := c.pair("q", UC, 0)
				must(t, q.Modify(c.now, &Attr{Rate: test.rate, Burst: test.burst}, AttrRate))
				burst := test.burst
				if burst == 0 {
					burst = int(test.rate / 1000)
				}
				m := meter{t: t, what: "QP", rate: float64(test.rate),
					burst: float64(max(burst, q.maxFrameLen()))}
				duration := max(Time(float64(second)*2e6/float64(test.rate)),
					Time(m.burst*1e11/m.rate))
				duration = min(duration, 2000*second)
				c.frames(duration, map[*QP]int{q: test.n},
					func(_ string, n int) { m.sent(c.now, n) })
				m.reached(c.now)
			})
	}
}

// Two classes and a QP have rates. What they do not use goes to lower classes.
func TestClassRate(t *testing.T) {
	c := newClassWorld(t, classConfigs{
		3: {Rate: 20_000_000, Burst: 4000}, 6: {Rate: 10_000_000, Burst: 1500, Order: FIFO},
		0: {Rate: 30_000_000, Burst: 2000}})
	load := map[*QP]int{
		c.pair("high 1", UC, 6): 5000, c.pair("high 2", UC, 6): 900,
		c.pair("mid 1", UC, 3): 1 << 16, c.pair("mid 2", UC, 3): 1,
		c.pair("low", UC, 0): 1 << 16,
	}
	slow := c.pair("slow", UC, 0)
	must(t, slow.Modify(c.now, &Attr{Rate: 1_000_000, Burst: 3000}, AttrRate))
	load[slow] = 2500
	meters := map[string]*meter{
		"high": {what: "class 6", rate: 10e6, burst: 1500},
		"mid":  {what: "class 3", rate: 20e6, burst: 4000},
		"low":  {what: "class 0", rate: 30e6, burst: 2000},
		"slow": {what: "QP", rate: 1e6, burst: 3000}}
	for _, m := range meters {
		m.t = t
	}
	c.frames(second, load, func(name string, n int) {
		kind := name
		if i := len(name) - 2; name[i] == ' ' {
			kind = name[:i]
		}
		meters[kind].sent(c.now, n)
		if kind == "slow" {
			meters["low"].sent(c.now, n)
		}
	})
	for _, m := range meters {
		m.reached(c.now)
	}
}

// ACKs of a QP without tokens do not wait, but READ responses do.
func TestRateAndControlPackets(t *testing.T) {
	c := newClassWorld(t, classConfigs{})
	q := c.pair("q", RC, 0)
	must(t, q.Modify(c.now, &Attr{Rate: 1000, Burst: 1}, AttrRate))
	peer := c.peers["q"]
	c.write(q, 3000)
	c.sends(all, "q")
	addr, key := c.ends[0].remote(0)
	c.post(peer, SendWR{Op: OpWrite, Flags: Signaled, SGEs: []SGE{c.ends[1].sge(0, 10)},
		RemoteAddr: addr, RKey: key})
	c.hear()
	c.sends(all, "q!")
	c.post(peer, SendWR{Op: OpRead, SGEs: []SGE{c.ends[1].sge(0, 10)}, RemoteAddr: addr, RKey: key})
	c.hear()
	c.sends(all, "")
	c.now += 5 * second
	c.sends(all, "q")
	if next, ok := c.ends[0].NextTimeout(); !ok || next > c.now+5*second {
		t.Errorf("NextTimeout() = %d, %v at %d", next, ok, c.now)
	}
}

// A change of the rate takes effect for a QP that waits for tokens.
func TestRateChange(t *testing.T) {
	c := newClassWorld(t, classConfigs{})
	q := c.pair("q", UC, 0)
	e := c.ends[0]
	must(t, q.Modify(c.now, &Attr{Rate: 1000, Burst: 1}, AttrRate))
	c.write(q, 5000)
	c.sends(all, "q")
	if e.Calm(c.now + second) {
		t.Error("Calm() = true, so the owner may be late for the tokens")
	}
	must(t, q.Modify(c.now, &Attr{Class: 3}, AttrClass))
	c.sends(all, "") // the bucket is the same
	must(t, q.Modify(c.now, &Attr{}, AttrRate))
	c.sends(all, "q*4")
	if len(e.limited.qps) != 0 || e.rated != 0 || !e.Calm(c.now+second) {
		t.Errorf("%d QPs wait for tokens, %d have a rate", len(e.limited.qps), e.rated)
	}
}

// starve makes the QPs of engine 0 wait while an urgent QP has something to send at any time.
func (c *classWorld) starve(d Time, urgent *QP) {
	c.t.Helper()
	c.write(urgent, 10)
	for end := c.now + d; c.now < end; c.now += 10_000 {
		if _, name := c.one(); name != "urgent" {
			c.t.Fatalf("%s sent a packet before the urgent QP", name)
		}
		c.write(urgent, 10)
		c.hear()
		c.ends[0].HandleTimeout(c.now)
		c.collect()
	}
	c.sends(1, "urgent")
}

// The timeouts of a QP do not expire because it is preempted or has no tokens.
func TestNoTimeoutsWhileWaiting(t *testing.T) {
	type change = func(*InitAttr, *Attr)
	selective := func(_ *InitAttr, a *Attr) { a.Selective = true; a.Timeout, a.RetryCnt = 6, 1 }
	goBackN := func(_ *InitAttr, a *Attr) { a.Timeout, a.RetryCnt = 6, 1 }
	for name, ch := range map[string]change{"selective repeat": selective, "go-back-N": goBackN} {
		for _, lose := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", loss: ", lose), func(t *testing.T) {
				c := newClassWorld(t, classConfigs{})
				e := c.ends[0]
				bulk, urgent := c.pair("bulk", RC, 0, ch), c.pair("urgent", UC, 7)
				c.filter = func(from int, p *bth.Packet) bool {
					return p.Info.Transport == bth.RC || from == 1
				}
				c.write(bulk, 8<<10)
				c.sends(3, "bulk*3") // no packet has asked for an ACK
				c.starve(second/20, urgent)
				if lose {
					lost := false
					filter := c.filter
					c.filter = func(from int, p *bth.Packet) bool {
						if p.Info.Transport == bth.RC && from == 0 && !lost {
							lost = true
							return false
						}
						return filter(from, p)
					}
				}
				c.write(bulk, 30<<10)
				c.take(20)
				c.hear()
				c.starve(second/20, urgent)
				probes := e.c.Probes + e.c.AckTimeouts
				resent := e.c.Retransmits
				for bulk.SQLen() > 0 && bulk.State() == RTS {
					c.take(2)
					c.hear()
					if bulk.list == inRunq {
						c.starve(second/1000, urgent)
					} else if next, ok := e.NextTimeout(); ok {
						c.now = max(c.now, next)
						e.HandleTimeout(c.now)
					}
				}
				if bulk.State() != RTS || probes != 0 || e.c.Probes+e.c.AckTimeouts > 0 ||
					(!lose && resent+e.c.Retransmits > 0) {
					t.Errorf("%s, %d probes, %d timeouts, %d retransmitted", bulk.State(),
						e.c.Probes,
						e.c.AckTimeouts, e.c.Retransmits)
				}
			})
		}
	}
}

// The packets of a QP with a low rate are further apart than its timeouts.
func TestNoTimeoutsWithLowRate(t *testing.T) {
	w := newWorld(t, 1)
	a, b := w.pair(RC, func(_ *InitAttr, at *Attr) { at.Timeout, at.RetryCnt = 5, 1 })
	for _, q := range []*QP{a, b} {
		must(t, q.Modify(w.now, &Attr{Rate: 20_000, Burst: 1}, AttrRate))
	}
	w.post(a, SendWR{Op: OpRead, ID: 1, Flags: Signaled, SGEs: []SGE{w.ends[0].sge(0, 100)},
		RemoteAddr: w.ends[1].mr.Addr(), RKey: bth.RKey(w.ends[1].mr.RKey())})
	w.post(a, SendWR{Op: OpWrite, ID: 2, Flags: Signaled, SGEs: []SGE{w.ends[0].sge(0, 50_000)},
		RemoteAddr: w.ends[1].mr.Addr(), RKey: bth.RKey(w.ends[1].mr.RKey())})
	for id := range uint64(2) {
		if wc := w.wc(0); wc.Status != Success || wc.ID != id+1 {
			t.Fatalf("completion %s, want %d", wc.short(), id+1)
		}
	}
	c := &w.ends[0].c
	if w.now < 2*second || c.Probes+c.AckTimeouts+c.Retransmits > 0 {
		t.Errorf("after %d ns: %d probes, %d timeouts, %d retransmitted, want none", w.now,
			c.Probes,
			c.AckTimeouts, c.Retransmits)
	}
	if s := w.ends[1].c.DuplicateRequest; s > 0 {
		t.Errorf("%d duplicates", s)
	}
}

// The timeouts run from the packet that asks for an ACK, not from earlier ones.
func TestTimeoutsAfterPreemption(t *testing.T) {
	c := newClassWorld(t, classConfigs{})
	e := c.ends[0]
	bulk, urgent := c.pair("bulk", RC, 0), c.pair("urgent", UC, 7)
	c.write(bulk, 4<<10)
	c.sends(3, "bulk*3")
	next, ok := e.NextTimeout()
	if !ok {
		t.Fatal("no timer with packets in flight")
	}
	// a peer that ACKs on request
	c.filter = func(from int, _ *bth.Packet) bool { return from == 0 }
	c.starve(next-c.now-50_000, urgent)
	c.filter = nil
	c.sends(1, "bulk")
	c.now += initialRTO / 2
	e.HandleTimeout(c.now)
	c.sends(all, "")
	if e.c.Probes > 0 {
		t.Error("a probe half of the timeout after the last packet")
	}
	c.hear()
	if bulk.SQLen() != 0 {
		t.Errorf("%d work requests after the ACK", bulk.SQLen())
	}
}

// Packets in the other direction do not postpone the repair of a loss.
func TestTimeoutsWithTrafficFromPeer(t *testing.T) {
	for _, selective := range []bool{false, true} {
		c := newClassWorld(t, classConfigs{})
		q := c.pair("q", RC, 3, func(_ *InitAttr, a *Attr) { a.Selective = selective })
		peer := c.peers["q"]
		lost := false
		c.filter = func(from int, p *bth.Packet) bool {
			if from == 0 && p.Info.Op == bth.OpWrite && !lost {
				lost = true
				return false
			}
			return true
		}
		there, key := c.ends[1].remote(0)
		c.post(q, SendWR{Op: OpWrite, SGEs: []SGE{c.ends[0].sge(0, 10)}, RemoteAddr: there, RKey: key})
		here, key := c.ends[0].remote(0)
		for limit := c.now + second/2; q.SQLen() > 0; {
			if peer.SQLen() < 4 {
				c.post(peer, SendWR{Op: OpWrite, Flags: Signaled,
					SGEs: []SGE{c.ends[1].sge(0, 10)}, RemoteAddr: here, RKey: key})
			}
			if !c.step(limit) {
				t.Fatalf("selective = %v: the loss is not repaired after half a second", selective)
			}
		}
	}
}
