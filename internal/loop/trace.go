package loop

import (
	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/frame"
)

// Tracer is called with each packet that the loop has built for the QP with number qpn, or received
// for it. p is valid during the call only. The owner calls it.
type Tracer func(sent bool, qpn bth.QPN, p *bth.Packet)

// tracer is the state of tracing.
type tracer struct {
	f   Tracer
	dec frame.Decoder // of sent frames
	pkt bth.Packet
}

// SetTracer sets the function that is called with each packet; nil: none. Owner only.
func (l *Loop) SetTracer(f Tracer) {
	l.tracer = nil
	if f != nil {
		l.tracer = &tracer{f: f}
	}
}

// sent reports a complete frame that was built.
func (t *tracer) sent(qpn bth.QPN, f []byte) {
	if t.dec.Decode(f, &t.pkt) == frame.ReasonOK {
		t.f(true, qpn, &t.pkt)
	}
}
