package roce

import (
	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/internal/loop"
	"github.com/gorxe/gorxe/qp"
)

// host is the device as the loop sees it. The loop's owner calls its methods.
type host struct{ dev *Device }

var _ loop.Host = host{}

// HandleQP1 implements loop.Host.
func (h host) HandleQP1(now qp.Time, p *bth.Packet) { h.dev.gsi.handle(now, p) }

// Work implements loop.Host.
func (h host) Work(now qp.Time) int {
	g := h.dev.gsi
	g.deposit()
	return g.alive.work(g, now) + g.endFailed(now) + g.handleTimeout(now) + g.transmit(now)
}

// NextTimeout implements loop.Host.
func (h host) NextTimeout() (qp.Time, bool) {
	t, ok := h.dev.gsi.cm.NextTimeout()
	if a, more := h.dev.gsi.alive.next(); more && (!ok || a < qp.Time(t)) {
		return a, true
	}
	return qp.Time(t), ok
}

// HandleEvent implements loop.Host. It drops events whose object has been closed meanwhile.
func (h host) HandleEvent(now qp.Time, ev qp.Event) {
	e := Event{Kind: eventKinds[ev.Kind]}
	if ev.QP != nil {
		if e.QP, _ = ev.QP.Outer().(*QP); e.QP != nil {
			e.describe()
		}
	}
	if ev.CQ != nil {
		if e.CQ = h.dev.engineCQs[ev.CQ]; e.CQ != nil {
			e.Err = e.CQ.Err()
		}
	}
	if ev.SRQ != nil {
		e.SRQ = h.dev.engineSRQs[ev.SRQ]
	}
	if e.QP == nil && e.CQ == nil && e.SRQ == nil {
		return
	}
	if e.Kind == EventCommEst {
		h.dev.gsi.established(now, e.QP)
	}
	h.dev.emit(e)
}

// describe sets the connection and the error of an event of a QP. Owner only.
func (e *Event) describe() {
	if e.QP.cmID != nil {
		e.Conn = e.QP.cmID.conn
	}
	switch e.Kind {
	case EventQPFatal, EventQPReqErr, EventQPAccessErr:
		if st := Status(e.QP.qp.Cause()); st != Success {
			e.Err = &StatusError{Status: st}
		}
	}
}

// do runs f as the loop's owner. It returns ErrClosed, without running f, if the device is closed.
// f must not call do.
func (d *Device) do(f func(now qp.Time)) error {
	if !d.loop.Do(f) {
		return ErrClosed
	}
	return nil
}

// setPortMTU tells the engine the largest path MTU that fits an interface MTU. Owner only.
func (d *Device) setPortMTU(mtu int) {
	if m := bth.MTUFor(mtu); m != 0 {
		d.eng.SetPortMTU(m)
	}
}
