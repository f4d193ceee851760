package qp

import "github.com/gorxe/gorxe/mr"

// minBody is how long a piece of a payload has to be for leaving it: for less there is nothing to gain.
const minBody = 1024

// LeaveBodies makes PollTransmit leave out most of a long payload, so that the caller copies it and sums the packet's ICRC at the same time.
// The caller asks Body after each packet then. Engine's thread only.
func (e *Engine) LeaveBodies() { e.leave = true }

// Body returns what the packet of the latest PollTransmit lacks, and at which of its bytes src belongs; nothing if the packet is
// whole. src is registered memory: it is copied at once, before anything else is asked of the engine.
func (e *Engine) Body() (at int, src []byte) {
	if src = e.body; src != nil {
		e.body = nil
	}
	return e.bodyAt, src
}

// copyOut puts registered memory into the packet, at dst, which is the packet from byte at on: all of it, or what has to be read first (see
// mr.CopyOutLast). One piece of a packet can be left.
func (e *Engine) copyOut(dst []byte, at int, src []byte) {
	if !e.leave || len(src) < minBody || e.body != nil {
		mr.CopyOut(dst, src)
		return
	}
	if n := mr.CopyOutLast(dst, src); n > 0 {
		e.body, e.bodyAt = src[:n], at
	}
}
