package qp

import (
	"errors"
	"testing"
)

// A CQ returns completions in order while its ring wraps several times.
func TestCQOrder(t *testing.T) {
	c, err := NewCQ(3)
	must(t, err)
	next := uint64(0)
	for i := range uint64(100) {
		if !c.push(&WC{ID: 2 * i}, false) || !c.push(&WC{ID: 2*i + 1}, false) {
			t.Fatal("a CQ with free entries overran")
		}
		if c.Len() != 2 {
			t.Fatalf("Len() = %d", c.Len())
		}
		var wcs [4]WC
		for _, wc := range wcs[:c.Poll(wcs[:])] {
			if wc.ID != next {
				t.Fatalf("got %d, want %d", wc.ID, next)
			}
			next++
		}
	}
	for _, n := range []int{0, -1, MaxCQDepth + 1} {
		if _, err := NewCQ(n); !errors.Is(err, ErrInvalidDepth) {
			t.Errorf("NewCQ(%d): %v", n, err)
		}
	}
}

// IBA 10.2.2.3: a completion without a free entry breaks the CQ. It raises CQ_ERR once, and every
// QP that completes to the CQ goes to ERR. Earlier completions can still be polled.
func TestCQOverrun(t *testing.T) {
	k := newTalk(t, RC, func(a *InitAttr, _ *Attr) {
		var err error
		a.SendCQ, err = NewCQ(2)
		must(t, err)
	})
	cq := k.q.sq.cq
	notified := 0
	cq.SetNotify(func() { notified++ })
	k.recvs(8)
	k.post(k.wr(1, OpWrite, 8), k.wr(2, OpWrite, 8), k.wr(3, OpWrite, 8), k.wr(4, OpWrite, 8))
	k.listen()
	cq.Arm(true)
	k.say(ack(3))
	k.is(Err)
	k.raises("CQ_ERR", "QP_FATAL")
	k.completes("1 Work Request Flushed Error") // the receive, in a separate CQ
	k.equal("overrun", cq.Overrun(), true)
	k.equal("notified", notified, 1)
	k.equal("SQLen", k.q.SQLen(), 0)
	var wcs [4]WC
	k.equal("left in the CQ", cq.Poll(wcs[:]), 2)
	k.equal("first and second", wcs[0].ID*10+wcs[1].ID, uint64(12))
	k.equal("depth", cq.Depth(), 2)
}

// The same for receives and for flushing. A QP that is already in ERR stays there.
func TestCQOverrunByReceives(t *testing.T) {
	k := newTalk(t, RC, func(a *InitAttr, _ *Attr) {
		var err error
		a.RecvCQ, err = NewCQ(1)
		must(t, err)
	})
	k.recvs(8, 8, 8)
	k.say(send(0, seq(1)), send(1, seq(1)))
	k.is(Err)
	k.raises("CQ_ERR", "QP_FATAL")
	k.equal("RQLen", k.q.RQLen(), 0)

	k = newTalk(t, UD, func(a *InitAttr, _ *Attr) { a.SendCQ, _ = NewCQ(1) })
	p := k.path(1)
	wr := SendWR{Op: OpSend, Flags: Signaled, AH: NewAH(&p, nil)}
	k.post(wr, wr, wr)
	k.listen()
	k.is(Err)
	k.raises("CQ_ERR", "QP_FATAL")
}

// A message whose completion was lost is not acknowledged: its sender must not believe that it was
// received.
func TestCQOverrunIsNotAcknowledged(t *testing.T) {
	k := newTalk(t, RC, func(a *InitAttr, _ *Attr) { a.RecvCQ, _ = NewCQ(1) })
	k.recvs(8, 8)
	k.say(send(0, nil))
	k.hears("ACK +0 msn=1")
	k.say(send(1, nil))
	k.hears()
}

// IBA 11.4.2.2: an armed CQ notifies once, at the next completion or, if armed for solicited ones,
// at the next solicited or failed one.
func TestCQNotify(t *testing.T) {
	quiet, solicited, failed := WC{}, WC{Flags: WCSolicited}, WC{Status: LocLenErr}
	for _, c := range []struct {
		name      string
		arm       func(c *CQ)
		wc        *WC
		solicited bool
		want      int
	}{
		{"not armed", func(*CQ) {}, &solicited, true, 0},
		{"armed for any", func(c *CQ) { c.Arm(false) }, &quiet, false, 1},
		{"armed for solicited, plain one comes", func(c *CQ) { c.Arm(true) }, &quiet, false, 0},
		{"armed for solicited, solicited one comes", func(c *CQ) { c.Arm(true) }, &solicited, true,
			1},
		{"armed for solicited, failed one comes", func(c *CQ) { c.Arm(true) }, &failed, false, 1},
		{"armed for any, then for solicited", func(c *CQ) { c.Arm(false); c.Arm(true) }, &quiet,
			false, 1},
		{"armed for solicited, then for any", func(c *CQ) { c.Arm(true); c.Arm(false) }, &quiet,
			false, 1},
	} {
		cq, err := NewCQ(8)
		must(t, err)
		n := 0
		cq.SetNotify(func() { n++ })
		c.arm(cq)
		cq.push(c.wc, c.solicited)
		if n != c.want {
			t.Errorf("%s: notified %d times, want %d", c.name, n, c.want)
		}
		cq.push(&failed, true)
		if n > 1 {
			t.Errorf("%s: notified %d times, armed once", c.name, n)
		}
	}
}

// The last packet of a SEND or WRITE with immediate carries the solicited bit.
func TestSolicitedEndToEnd(t *testing.T) {
	w := newWorld(t, 1)
	a, b := w.pair(RC, func(_ *InitAttr, at *Attr) { at.PathMTU = 256 })
	peer := w.ends[1]
	n := 0
	peer.cq.SetNotify(func() { n++ })
	va, key := peer.remote(0)
	for _, c := range []struct {
		wr   SendWR
		want int
	}{
		{SendWR{Op: OpSend, SGEs: []SGE{w.ends[0].sge(0, 600)}}, 0},
		{SendWR{Op: OpSend, Flags: Solicited, SGEs: []SGE{w.ends[0].sge(0, 600)}}, 1},
		{SendWR{Op: OpWriteImm, Flags: Solicited, RemoteAddr: va, RKey: key,
			SGEs: []SGE{w.ends[0].sge(0, 600)}}, 1},
		{SendWR{Op: OpWriteImm, RemoteAddr: va, RKey: key, SGEs: []SGE{w.ends[0].sge(0, 600)}}, 0},
	} {
		w.recv(b, RecvWR{SGEs: []SGE{peer.sge(0, 600)}})
		n = 0
		peer.cq.Arm(true)
		w.post(a, c.wr)
		wc := w.wc(1)
		if n != c.want || (wc.Flags&WCSolicited != 0) != (c.want == 1) {
			t.Errorf("%s with flags %d: notified %d times, want %d; %+v", c.wr.Op, c.wr.Flags, n,
				c.want, wc)
		}
		peer.cq.armed.Store(armNone)
	}
}
