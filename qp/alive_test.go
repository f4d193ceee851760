package qp

import (
	"bytes"
	"testing"

	"github.com/gorxe/gorxe/bth"
)

// keepAlive sends a keepalive packet from end i and reports whether the QP could.
func (w *world) keepAlive(i int, q *QP) bool {
	var b [MinBuffer]byte
	n, netLen := q.PutKeepAlive(b[:])
	if n > 0 {
		w.send(i, b[netLen:n])
	}
	return n > 0
}

// answered reports whether the peer answered a keepalive, and whether its packets were counted as
// requests or acknowledgments.
func answered(t *testing.T, q *QP, f func()) bool {
	t.Helper()
	r, a, _ := q.Contact()
	f()
	r2, a2, ok := q.Contact()
	if r != r2 || a != a2 {
		t.Errorf("a keepalive moved the PSNs from %d, %d to %d, %d", r, a, r2, a2)
	}
	return ok
}

// A live peer answers keepalives before and after each kind of request, without any right of its
// QP. They change nothing else.
func TestKeepAlive(t *testing.T) {
	w := newWorld(t, 1)
	a, b := w.pair(RC, func(_ *InitAttr, at *Attr) { at.SQPSN, at.RQPSN = 0x1234, 0x1234 })
	before := bytes.Clone(w.ends[1].mem)
	probe := func(what string) {
		t.Helper()
		if !answered(t, a, func() {
			if !w.keepAlive(0, a) {
				t.Errorf("%s: no keepalive can be sent", what)
			}
			w.idle(second)
		}) {
			t.Errorf("%s: the keepalive is not answered", what)
		}
		if len(w.ends[0].wcs)+len(w.ends[1].wcs)+len(w.ends[0].evs) > 0 {
			t.Errorf("%s: completions %v, %v, events %v", what, w.ends[0].wcs, w.ends[1].wcs,
				w.ends[0].evs)
		}
	}
	probe("fresh")
	addr, key := w.ends[1].remote(0)
	for _, op := range []Op{OpRead, OpFetchAdd, OpWrite} {
		w.post(a, SendWR{ID: 1, Op: op, Flags: Signaled, SGEs: []SGE{w.ends[0].sge(64, 8)},
			RemoteAddr: addr, RKey: key})
		if wc := w.wc(0); wc.Status != Success {
			t.Fatalf("%v: %v", op, wc.Status)
		}
		probe(op.String())
	}
	b.responder.access = 0 // a WRITE would be refused now
	probe("peer without access")
	if a.State() != RTS || b.State() != RTS {
		t.Errorf("the QPs are in %v and %v", a.State(), b.State())
	}
	if !bytes.Equal(before, w.ends[1].mem) {
		t.Error("the peer's memory has changed")
	}
	w.filter = func(int, *bth.Packet) bool { return false }
	if answered(t, a, func() { w.keepAlive(0, a); w.idle(second) }) {
		t.Error("a dead peer answers")
	}
}

func TestKeepAliveIsNotSent(t *testing.T) {
	w := newWorld(t, 1)
	a, b := w.pair(RC)
	if a.attr.SQPSN <= maxKeepAlivePSN || w.keepAlive(0, a) {
		t.Error("before the first request, with a starting PSN near 0xffffff")
	}
	addr, key := w.ends[1].remote(0)
	write := SendWR{Op: OpWrite, Flags: Signaled, SGEs: []SGE{w.ends[0].sge(0, 8)}, RemoteAddr: addr,
		RKey: key}
	w.post(a, write)
	w.wc(0)
	if !w.keepAlive(0, a) {
		t.Error("not sent after the first request")
	}
	w.post(a, write)
	w.pump(0)
	if w.keepAlive(0, a) {
		t.Error("while a packet is outstanding")
	}
	b.setState(Err)
	if w.keepAlive(1, b) {
		t.Error("in ERR")
	}
	if c, _ := w.pair(UC); w.keepAlive(0, c) {
		t.Error("by a UC QP")
	}
}

// Abandon moves the QP to ERR, flushes it, and its cause is the exhausted retries.
func TestAbandon(t *testing.T) {
	w := newWorld(t, 1)
	a, _ := w.pair(RC)
	w.recv(a, RecvWR{ID: 7, SGEs: []SGE{w.ends[0].sge(0, 8)}})
	if a.Cause() != Success {
		t.Errorf("Cause() = %v before the end", a.Cause())
	}
	a.Abandon()
	a.Abandon()
	w.collect()
	if a.State() != Err || a.Cause() != RetryExcErr {
		t.Errorf("%v, Cause() = %v", a.State(), a.Cause())
	}
	if e := w.ends[0]; len(e.wcs) != 1 || e.wcs[0].Status != WRFlushErr || len(e.evs) != 1 ||
		e.evs[0].Kind != EventQPFatal {
		t.Errorf("completions %v, events %v", e.wcs, e.evs)
	}
}

// Cause is the status of the first work request that failed, not of those that were flushed.
func TestCause(t *testing.T) {
	w := newWorld(t, 1)
	a, _ := w.pair(RC)
	addr, key := w.ends[1].remote(0)
	for _, k := range []bth.RKey{key ^ 1<<20, key} {
		w.post(a, SendWR{Op: OpWrite, Flags: Signaled, SGEs: []SGE{w.ends[0].sge(0, 8)},
			RemoteAddr: addr, RKey: k})
	}
	w.wc(0)
	w.wc(0)
	if a.Cause() != RemAccessErr {
		t.Errorf("Cause() = %v, want %v", a.Cause(), RemAccessErr)
	}
	must(t, a.Modify(w.now, &Attr{State: Reset}, AttrState))
	if a.Cause() != Success {
		t.Errorf("Cause() = %v after RESET", a.Cause())
	}
}
