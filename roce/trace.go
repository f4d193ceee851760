package roce

import (
	"fmt"
	"maps"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/qp"
)

// TraceKind is what a TraceEvent reports.
type TraceKind uint8

// The kinds of TraceEvents.
const (
	TracePostSend   TraceKind = iota // a send work request is about to be posted
	TracePostRecv                    // a receive is about to be posted to the QP's own queue
	TraceCompletion                  // the program has polled a completion
	TraceSent                        // a packet was built and is passed to the port
	TraceReceived                    // a packet was received, before the QP checks it
)

// String returns "post", "recv", "done", "sent" or "rcvd".
func (k TraceKind) String() string {
	if names := [...]string{"post", "recv", "done", "sent", "rcvd"}; int(k) < len(names) {
		return names[k]
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// TraceEvent is a step of a work request or a packet of a QP.
type TraceEvent struct {
	Kind  TraceKind
	Time  time.Duration // since the Device was opened; in virtual time what Expert.Clock returns
	QPN   QPN           // the local QP; 1 is that of the connection manager
	Op    string        // operation of the work request, or opcode of the packet ("RC SEND Only")
	Bytes int           // of the message, or payload of the packet

	ID     uint64 // work requests and completions: their ID
	Status Status // completions

	PSN    PSN    // packets
	AckReq bool   // packets: the sender asks for an acknowledgment
	Ack    string // packets with an AETH: for example "ACK" or "NAK PSN sequence error"
	Remote GID    // packets: the peer
}

// String returns the event as one line.
func (e TraceEvent) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v QP %#x %v %s", e.Time, uint32(e.QPN), e.Kind, e.Op)
	switch e.Kind {
	case TraceSent, TraceReceived:
		fmt.Fprintf(&b, " PSN %d, %d bytes, peer %v", e.PSN, e.Bytes, e.Remote)
		if e.AckReq {
			b.WriteString(", asks for an ACK")
		}
		if e.Ack != "" {
			b.WriteString(", " + e.Ack)
		}
	case TraceCompletion:
		fmt.Fprintf(&b, " ID %d, %d bytes: %v", e.ID, e.Bytes, e.Status)
	default:
		fmt.Fprintf(&b, " ID %d, %d bytes", e.ID, e.Bytes)
	}
	return b.String()
}

// WithTrace makes the Device call f with each work request, completion and packet of all its QPs,
// and each packet of the connection manager. QP.Trace does it for one QP, at any time.
//
// f is called in the goroutine that posts, polls or runs the protocol, so from several goroutines
// at the same time, and sometimes with locks held. It must be quick and must not call methods of
// the Device or its objects. Without tracing, the data path does no work for it.
func WithTrace(f func(TraceEvent)) Option { return func(c *config) { c.trace = f } }

// Trace makes the Device call f with each work request, completion and packet of the QP, in
// addition to that of WithTrace; nil ends it. See WithTrace for what f may do. Closing the QP ends
// it, too.
//
// Errors: ErrClosed.
func (q *QP) Trace(f func(TraceEvent)) error {
	d := q.device()
	d.ctl.Lock()
	defer d.ctl.Unlock()
	if q.closed.Load() {
		return ErrClosed
	}
	return d.setTrace(q.QPN(), f)
}

// tracing counts the devices that trace something. It is global so that posting and polling need
// not read the device to find out.
var tracing atomic.Int32

// traceSet is what a device traces. It is immutable.
type traceSet struct {
	all func(TraceEvent)
	by  map[QPN]func(TraceEvent)
}

// setTrace sets the function for one QP. The caller holds ctl.
func (d *Device) setTrace(qpn QPN, f func(TraceEvent)) error {
	var next traceSet
	if old := d.trace.Load(); old != nil {
		next = traceSet{old.all, maps.Clone(old.by)}
	}
	if next.by == nil {
		next.by = map[QPN]func(TraceEvent){}
	}
	if f == nil {
		delete(next.by, qpn)
	} else {
		next.by[qpn] = f
	}
	return d.setTraces(&next)
}

// setTraces replaces what the device traces. The caller holds ctl, or is the only user of the
// device.
func (d *Device) setTraces(next *traceSet) error {
	old := d.trace.Load()
	on := next != nil && (next.all != nil || len(next.by) > 0)
	if on {
		d.trace.Store(next)
	} else {
		d.trace.Store(nil)
	}
	if was := old != nil; on != was {
		n := int32(1)
		if was {
			n = -1
		}
		tracing.Add(n)
		postHooks.Add(n)
		return d.do(func(qp.Time) {
			if on {
				d.loop.SetTracer(d.tracedPacket)
			} else {
				d.loop.SetTracer(nil)
			}
		})
	}
	return nil
}

// report calls the functions that want the event.
func (d *Device) report(e *TraceEvent) {
	t := d.trace.Load()
	if t == nil {
		return
	}
	f := t.by[e.QPN]
	if t.all == nil && f == nil {
		return
	}
	if e.Time = time.Since(d.opened); d.clock != nil {
		e.Time = time.Duration(d.clock())
	}
	if t.all != nil {
		t.all(*e)
	}
	if f != nil {
		f(*e)
	}
}

// beforePost does what PostSend rarely does: prefetch and trace.
func (q *QP) beforePost(wrs []SendWR) {
	if postPrefetch.Load() > 0 {
		q.prefetch()
	}
	if tracing.Load() == 0 {
		return
	}
	d := q.device()
	if d.trace.Load() == nil {
		return
	}
	for i := range wrs {
		w := &wrs[i]
		e := TraceEvent{Kind: TracePostSend, QPN: q.QPN(), Op: w.Op.String(), ID: w.ID,
			Bytes: len(w.Inline)}
		for j := range w.SGEs {
			e.Bytes += int(w.SGEs[j].Length)
		}
		d.report(&e)
	}
}

// tracedRecvs reports receives that are about to be posted.
func (d *Device) tracedRecvs(qpn QPN, wrs []RecvWR) {
	if d.trace.Load() == nil {
		return
	}
	for i := range wrs {
		e := TraceEvent{Kind: TracePostRecv, QPN: qpn, Op: "RECV", ID: wrs[i].ID}
		for j := range wrs[i].SGEs {
			e.Bytes += int(wrs[i].SGEs[j].Length)
		}
		d.report(&e)
	}
}

// tracedCompletions reports completions that were polled.
func (d *Device) tracedCompletions(wcs []WC) {
	if d.trace.Load() == nil {
		return
	}
	for i := range wcs {
		w := &wcs[i]
		d.report(&TraceEvent{Kind: TraceCompletion, QPN: w.QPN, Op: w.Opcode.String(), ID: w.ID,
			Bytes: int(w.ByteLen), Status: w.Status})
	}
}

// tracedPacket reports a packet. Owner only.
func (d *Device) tracedPacket(sent bool, qpn bth.QPN, p *bth.Packet) {
	e := TraceEvent{Kind: TraceReceived, QPN: qpn, Op: p.BTH.Opcode().String(),
		Bytes: len(p.Payload), PSN: p.BTH.PSN(), AckReq: p.BTH.AckReq(), Remote: p.Src}
	if sent {
		e.Kind, e.Remote = TraceSent, p.Dst
	}
	if p.Info.AETH > 0 {
		e.Ack = p.AETH().Syndrome().String()
	}
	d.report(&e)
}
