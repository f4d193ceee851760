package qp

import "testing"

func (q *QP) metered(t *testing.T) Traffic {
	t.Helper()
	tr, ok := q.Traffic()
	if !ok {
		t.Fatal("the QP is not metered")
	}
	return tr
}

// A meter counts what one QP sends and receives, and starts again at a reset.
func TestTraffic(t *testing.T) {
	const size = 300
	for _, typ := range []Type{RC, UC, UD} {
		c := newCable(t, typ, 256)
		other, _ := c.pair(typ)
		var moved uint64
		for _, tr := range hotTraffic(c, size) {
			if tr.typ != typ {
				continue
			}
			for _, wr := range tr.wrs {
				for _, s := range wr.SGEs {
					if wr.Op != OpFetchAdd && wr.Op != OpCmpSwap { // no payload
						moved += uint64(s.Length)
					}
				}
				moved += uint64(len(wr.Inline))
			}
			c.once(&tr, []RecvWR{{SGEs: []SGE{c.ends[1].sge(0, 4096)}}})
		}
		a, b := c.a.metered(t), c.b.metered(t)
		ea, eb := c.ends[0].Counters(), c.ends[1].Counters()
		if a.Sent == 0 || a.Sent != ea.SentBytes || a.Rcvd != ea.RcvdBytes ||
			b.Sent != eb.SentBytes || b.Rcvd != eb.RcvdBytes || a.Sent != b.Rcvd || b.Sent != a.Rcvd {
			t.Errorf("%v: %d bytes sent, %d received, at the peer %d and %d; the engines have %d, %d, "+
				"%d and %d", typ, a.Sent, a.Rcvd, b.Sent, b.Rcvd, ea.SentBytes, ea.RcvdBytes,
				eb.SentBytes, eb.RcvdBytes)
		}
		if typ == RC && (a.Rcvd == 0 || a.RTTs.total() == 0 || a.RTTs != *c.ends[0].RTTs()) {
			t.Errorf("%+v, want READ responses and the round trips of the engine, %+v", a,
				c.ends[0].RTTs())
		}
		if a.Sent+a.Rcvd != moved {
			t.Errorf("%v: %d bytes in both directions, want the %d of the work requests", typ,
				a.Sent+a.Rcvd, moved)
		}
		if tr := other.metered(t); tr != (Traffic{}) {
			t.Errorf("%v: an idle QP has %+v", typ, tr)
		}
		must(t, c.a.Modify(c.now, &Attr{State: Reset}, AttrState))
		if tr := c.a.metered(t); tr != (Traffic{}) {
			t.Errorf("%v: after a reset: %+v", typ, tr)
		}
	}
}

func (h *RTTHistogram) total() (n uint64) {
	for _, c := range h.Counts {
		n += c
	}
	return n
}

// The number of meters is limited. A destroyed QP makes room for another one, which does not
// inherit its traffic; a QP without a meter works.
func TestMeters(t *testing.T) {
	w := newWorld(t, 1)
	as, _ := w.crowd(MaxMeters + 2)
	for i, q := range as {
		if _, ok := q.Traffic(); ok != (i < MaxMeters) {
			t.Fatalf("QP %d has a meter: %v", i, ok)
		}
	}
	write := func(q *QP) {
		t.Helper()
		va, key := w.ends[1].remote(0)
		w.post(q, SendWR{Op: OpWrite, Flags: Signaled, SGEs: []SGE{w.ends[0].sge(0, 8)},
			RemoteAddr: va, RKey: key})
		if wc := w.wc(0); wc.Status != Success {
			t.Fatal(wc.Status)
		}
	}
	seen := map[*trafficMeter]bool{}
	for i, q := range as {
		write(q)
		if tr, ok := q.Traffic(); ok && (tr.Sent != 8 || tr.RTTs.total() != 1) {
			t.Fatalf("QP %d: %+v, want 8 bytes and a round trip", i, tr)
		}
		seen[q.meter()] = true
	}
	if len(seen) != maxMeter {
		t.Errorf("%d meters are in use, want %d", len(seen), maxMeter)
	}
	e := w.ends[0].Engine
	e.DestroyQP(as[5])
	e.DestroyQP(as[5])
	e.DestroyQP(as[MaxMeters]) // had none
	if _, ok := as[5].Traffic(); ok {
		t.Error("a destroyed QP has a meter")
	}
	fresh, _ := w.crowd(2)
	if tr := fresh[0].metered(t); tr != (Traffic{}) {
		t.Errorf("a new QP has %+v", tr)
	}
	if _, ok := fresh[1].Traffic(); ok {
		t.Error("two QPs share a meter")
	}
	write(fresh[0])
	if tr := fresh[0].metered(t); tr.Sent != 8 {
		t.Errorf("a new QP has sent %d bytes, want 8", tr.Sent)
	}
}
