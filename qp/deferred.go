package qp

import (
	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/mr"
)

// Transmit describes a packet that PollTransmit wrote. Its payload may be incomplete: see
// DeferPayloads.
type Transmit struct {
	Len       int     // bytes, the deferred ones included
	NetLen    int     // of them, the network headers before the BTH
	PayloadAt int     // offset of the deferred bytes in the packet
	Payload   []byte  // deferred bytes, in registered memory; nil: the packet is complete
	Class     uint8   // traffic class of the QP; valid while Engine.Bounded is true
	QPN       bth.QPN // of the QP that sends the packet
	// Ended is the number of packets of the SEND or WRITE message that this packet of an RC QP
	// ends, or of the READ response whose last packet comes next, before another response. It is 0
	// for other packets, messages of one packet, and without Config.Runs. See runs.go.
	Ended int
	// Next is the number of packets that PollRun can prepare after this one.
	Next int
}

// DeferPayloads makes PollTransmit leave out most of a long payload. The caller copies it into the
// packet and calls Copied before it makes another call to the engine, which lets it compute the
// ICRC during the copy. Set it before use.
func (e *Engine) DeferPayloads() { e.deferring = true }

// Copied must be called when the deferred payload of a packet was copied. Nothing acknowledges UC
// and UD messages: only now may their work request complete, because the program may then reuse the
// memory.
func (e *Engine) Copied() {
	if q := e.uncopied; q != nil {
		e.uncopied = nil
		q.retireSent()
	}
}

// copyOut copies registered memory to offset at of the packet, dst being that part of the packet.
// It may defer most of one piece per packet; the rest is what must be read first, see
// mr.CopyOutLast.
func (e *Engine) copyOut(dst []byte, at int, src []byte) {
	if !e.deferring || len(src) < minDeferred || e.tx.Payload != nil {
		mr.CopyOut(dst, src)
		return
	}
	if n := mr.CopyOutLast(dst, src); n > 0 {
		e.tx.Payload, e.tx.PayloadAt = src[:n], at
	}
}

// undefer forgets the deferred payload of a packet that is not sent.
func (e *Engine) undefer() { e.tx.Payload, e.tx.PayloadAt = nil, 0 }
