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
	maxExtents  = 256     // messages whose memory is recorded, per QP
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
	dropped  bool   // a packet after the gap was dropped and a NAK reported it
	stalled  bool   // the expected packet is parked and waits for space in the answer queue

	inFills // links in Engine.fills
	placement
}

// hold handles a packet after a gap, or one that is held already.
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
		q.counted().DuplicateRequests++
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
		q.counted().SentSeqNAK++
		q.oweNAK(bth.NAKSyndrome(bth.NAKPSNSequence))
	}
}

// afterGap executes the expected packet after later ones have arrived or it was refused, and then
// the held packets that follow it.
func (q *QP) afterGap(now Time, p *bth.Packet) {
	if r := q.reorder; r != nil && r.listed {
		q.hold(now, q.epsn, p) // a duplicate: later packets may have replaced its data in memory
		return
	}
	q.refused, q.refusedRNR = false, false
	q.respond(now, q.execute(p), p)
	if q.reorder != nil {
		q.fill(now)
	}
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
		q.eng.release(r)
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
