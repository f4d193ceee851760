package qp

import (
	"math"

	"github.com/gorxe/gorxe/bth"
)

// Selective repeat at the responder: see docs/selective-repeat.md. A packet that arrives after a
// gap is held until the packets before it have arrived. Its data goes to memory at once if that
// cannot change what in-order execution leaves there (see reorder_place.go). Otherwise the packet
// is parked: copied to the engine's pool. When the gap is filled, held packets are executed in PSN
// order by the same code as other packets, so completions, atomics and the last packet of each
// message take effect in order.

// Limits of what a responder holds. Memory has a limit too: Config.MaxReorderMemory.
const (
	reorderSpan = 1 << 17 // packets from the expected one to the last one that is held
	maxExtents  = 256     // messages whose memory is known, per QP
	selAckBatch = 4       // held packets between two selective acknowledgments
)

// reorder is what a responder holds after a gap. A QP has one from the first packet after a gap
// until the gap is filled.
type reorder struct {
	psnRing
	from  uint64 // no packet before this one is held
	top   uint64 // count after the last held packet
	held  int    // packets
	bytes int    // memory taken from the pool

	last     uint64 // the held packet that arrived most recently
	repeated bool   // last was a duplicate
	dropped  bool   // a packet after the gap was dropped and a NAK said so
	stalled  bool   // the expected packet is parked and waits for space in the answer queue

	placement
}

// hold processes a packet after a gap.
func (q *QP) hold(now Time, psn uint64, p *bth.Packet) {
	e := q.eng
	r := q.reorder
	if r == nil {
		if r = e.pool.take(); r == nil {
			e.c.ReorderDrops++
			q.sequenceNAK(p.BTH.PSN())
			return
		}
		r.from, r.top = q.epsn, q.epsn
		q.reorder = r
	}
	q.refused = true
	if psn-q.epsn >= reorderSpan || !e.pool.reach(r, psn-q.epsn) {
		q.cannotHold(r)
		return
	}
	if r.holds(psn) {
		e.c.DuplicateRequest++
		r.last, r.repeated = psn, true
		if p.BTH.AckReq() { // a probe asks for everything
			r.last, r.repeated = r.top-1, false
		}
		q.countDuplicate()
		q.oweAckNow(now)
		return
	}
	isNew := psn > r.top
	r.learn(q, psn, p)
	switch {
	case r.place(q, psn, p):
		e.c.PlacedPkts++
	case !e.pool.park(r, psn, p):
		q.cannotHold(r)
		return
	}
	r.set(psn)
	r.held++
	r.top = max(r.top, psn+1)
	r.last, r.repeated = psn, false
	e.c.HeldPkts++
	q.unacked++
	q.oweAck(now, p.BTH.AckReq())
	if isNew || q.unacked >= selAckBatch || p.BTH.AckReq() {
		q.ackAtOnce()
	}
}

// cannotHold drops a packet after a gap. Once per gap it sends a NAK without a SelACK, which means
// that everything that has not been reported as held is lost.
func (q *QP) cannotHold(r *reorder) {
	q.eng.c.ReorderDrops++
	if !r.dropped && !q.refusedRNR {
		r.dropped = true
		q.eng.c.SentSeqNAK++
		q.oweNAK(bth.NAKSyndrome(bth.NAKPSNSequence))
	}
}

// afterGap executes the expected packet after later ones have arrived or it was refused, and then
// the held packets that follow it.
func (q *QP) afterGap(now Time, p *bth.Packet) {
	q.refused, q.refusedRNR = false, false
	q.respond(now, q.execute(p), p)
	if q.reorder != nil {
		q.fill(now)
	}
}

// fill executes the held packets that follow the ones executed.
func (q *QP) fill(now Time) {
	r := q.reorder
	r.stalled, r.dropped = false, false
	first := q.epsn
	for {
		r.discard(&q.eng.pool, q.epsn)
		if r.held == 0 || !r.holds(q.epsn) {
			break
		}
		if !q.executeHeld(now, r) {
			break
		}
	}
	if q.reorder == nil { // the QP is in ERR
		return
	}
	if r.held == 0 {
		q.releaseReorder()
		q.refused = q.refusedRNR
	} else {
		r.compact(q.epsn)
		q.refused = true
	}
	if q.nakOwed && !q.refusedRNR { // cannotHold dropped a packet before this one arrived
		q.nakPSN = q.epsn
	}
	switch {
	case q.epsn != first && (q.refused || q.unacked > 0), q.unacked >= selAckBatch:
		q.oweAck(now, true)
		q.ackAtOnce()
	case q.refused && !q.ackOwed:
		q.oweAck(now, true)
	}
}

// executeHeld executes the expected packet, which is held. It reports whether the next one may
// follow.
func (q *QP) executeHeld(now Time, r *reorder) bool {
	e := q.eng
	h := r.parked[q.epsn&r.mask]
	if h == nil {
		return q.countPlaced(now, r)
	}
	p := &e.parked
	if p.Parse(h.b[:h.n]) != nil {
		return false // cannot happen: it was parsed before
	}
	psn := q.epsn
	v := q.execute(p)
	if q.reorder == nil {
		return false
	}
	switch v {
	case drop: // the answer queue is full
		r.stalled = true
		return false
	case refuseRNR: // the requester sends it again
		r.drop(&e.pool, psn)
	}
	q.respond(now, v, p)
	return q.reorder != nil && q.epsn != psn
}

// countPlaced accounts for the expected packet, whose data is in memory already.
func (q *QP) countPlaced(now Time, r *reorder) bool {
	v := refuseInvalid
	switch x := r.current(q.epsn); {
	case x != nil && x.first == q.epsn && q.msg == msgNone:
		q.va, q.key, q.dma, q.off, q.msg = x.va, x.key, uint32(x.size), q.mtu.Load(), msgWrite
		v = accept
	case q.msg == msgSend && q.recv.held, x != nil && q.msg == msgWrite:
		q.off += q.mtu.Load()
		v = accept
	}
	if v != accept {
		q.refuseFatally(v)
		return false
	}
	q.epsn++
	q.ackable = q.epsn
	q.unacked++
	return true
}

// countDuplicate counts a packet that was received before, for the next acknowledgment.
func (q *QP) countDuplicate() {
	q.duplicates++
	q.selAck = true
}

// releaseReorder returns the memory of held packets to the engine.
func (q *QP) releaseReorder() {
	if r := q.reorder; r != nil {
		q.reorder = nil
		q.eng.pool.give(r)
	}
}

// sendSelAck sends an acknowledgment with what the responder holds: a NAK for the expected packet
// if later ones are held. If none is held it is an ACK, because a NAK without held packets makes
// the requester send all of them again; the packet after the gap has caused one.
func (q *QP) sendSelAck(b []byte) (n, netLen int) {
	gap := q.refused && q.reorder != nil && q.reorder.held > 0
	q.acked()
	q.eng.c.SentSelAcks++
	if gap {
		return q.putSelAck(b, q.epsn, bth.NAKSyndrome(bth.NAKPSNSequence))
	}
	return q.putSelAck(b, q.ackable-1, bth.ACKNoLimit)
}

// putSelAck writes an acknowledgment with a SelACK.
func (q *QP) putSelAck(b []byte, psn uint64, s bth.Syndrome) (n, netLen int) {
	n, netLen = q.putAck(b, psn, s)
	start, words := q.epsn, q.eng.selWords[:0]
	if r := q.reorder; r != nil {
		start, words = r.report(q.epsn, words)
	}
	q.selAck = false
	n += bth.PutSelACK(b[n:], bth.PSN(start&psnMask), q.duplicates, words)
	return n, netLen
}

// report returns the bitmap for the next SelACK and its first PSN. It has at most 512 packets:
// those up to the most recent one or, after a duplicate, from that one on, because its sender does
// not know that they are held.
func (r *reorder) report(epsn uint64, words []uint32) (uint64, []uint32) {
	if r.top <= epsn {
		return epsn, words
	}
	const most = 32 * bth.MaxSelACKWords
	start, end := epsn, min(r.top, epsn+most)
	if r.last >= epsn {
		at := (r.last - epsn) / 32
		switch {
		case r.repeated:
			start = epsn + 32*at
			end = min(r.top, start+most)
		case at >= bth.MaxSelACKWords:
			start = epsn + 32*(at-bth.MaxSelACKWords+1)
			end = r.last + 1
		}
	}
	for at := start; at < end; at += 32 {
		w := r.bits(at)
		if end-at < 32 {
			w &= math.MaxUint32 << (32 - (end - at))
		}
		words = append(words, w)
	}
	return start, words
}
