package qp

import (
	"encoding/binary"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/mr"
)

// handleSelectiveResponse processes the response to a READ, atomic, FLUSH or ATOMIC WRITE while a
// scoreboard is open. It places the data at once, whatever is missing before it. psn is within
// [una, max).
func (q *QP) handleSelectiveResponse(now Time, psn uint64, p *bth.Packet) {
	b, i := q.cc.board, q.workRequest(psn)
	w := q.sq.at(i)
	switch {
	case !w.answeredBy(p.Info.Op):
		q.eng.c.DropGhost++
		return
	case b.isHeld(psn):
		q.eng.c.DropGhost++
		q.spurious(now, 1)
		return
	case w.status != Success || q.overlaps(b, i):
		return
	}
	if m, ok := q.missingBefore(b, i); ok {
		q.tooNew(now, b, m, psn)
		return
	}
	if st := q.place(b, i, psn, p); st != Success {
		q.halt(w, st)
		return
	}
	_, end := w.partOf(psn)
	if psn < b.piece {
		end = b.piece
	}
	q.executedTo(now, b, end)
	q.deliver(now, b, psn)
	q.settle(now)
}

// answeredBy reports whether a response of this operation may answer the work request.
func (w *wqe) answeredBy(op bth.Operation) bool {
	switch w.op {
	case OpRead, OpFlush, OpAtomicWrite:
		return op == bth.OpReadResponse
	case OpCmpSwap, OpFetchAdd:
		return op == bth.OpAtomicAck
	}
	return false
}

// place copies a response to the memory of WQE i.
func (q *QP) place(b *scoreboard, i uint32, psn uint64, p *bth.Packet) Status {
	w := q.sq.at(i)
	switch w.op {
	case OpRead:
		mtu := q.mtu.Load()
		off := uint32(psn-w.psn) * mtu
		if uint32(len(p.Payload)) != min(mtu, w.length-off) {
			return BadRespErr
		}
		if b.shared && q.superseded(b, i, psn-w.psn) {
			return Success
		}
		return q.eng.scatter(q.pd, q.sq.sgesAt(i), off, p.Payload)
	case OpCmpSwap, OpFetchAdd:
		if b.shared && q.superseded(b, i, 0) {
			return Success
		}
		v := q.eng.word[:]
		binary.NativeEndian.PutUint64(v, p.AtomicAckETH().Original())
		return q.eng.scatter(q.pd, q.sq.sgesAt(i), 0, v)
	}
	if len(p.Payload) != 0 {
		return BadRespErr
	}
	return Success
}

// overlaps reports whether WQE i writes to part of the memory that an earlier, incomplete one also
// writes to. Its responses are dropped until the earlier one is complete, because the memory must
// end up with the data of the later one. If both write to the same memory, their responses may
// arrive in any order: see superseded.
func (q *QP) overlaps(b *scoreboard, i uint32) bool {
	s := &q.sq
	tail := s.tail.Load()
	if i == tail || (b.isApart && b.apart == i) {
		return false
	}
	for j := tail; j != i; j++ {
		switch w := s.at(j); {
		case !w.op.fetches():
		case w.sameMemory(s.at(i)):
			b.shared = true
		case q.sharesMemory(i, j):
			return true
		}
	}
	b.apart, b.isApart = i, true
	return false
}

// missingBefore returns the first READ of one packet before WQE i, a READ, that has no response
// yet. READs see memory in order (see package mr). Such a READ may have to be executed again, after
// WQE i.
func (q *QP) missingBefore(b *scoreboard, i uint32) (psn uint64, ok bool) {
	s := &q.sq
	if s.at(i).op != OpRead || (b.isOrdered && b.ordered == i) {
		return 0, false
	}
	for j := s.tail.Load(); j != i; j++ {
		if w := s.at(j); w.op == OpRead && w.npkts == 1 && !b.isHeld(w.psn) {
			return w.psn, true
		}
	}
	b.ordered, b.isOrdered = i, true
	return 0, false
}

// tooNew drops the response to packet p of a READ, because the response to packet m is missing,
// which is all of an earlier READ. Both are requested again, m first. Unless responses have been
// late before, all after m are requested again at once.
func (q *QP) tooNew(now Time, b *scoreboard, m, p uint64) {
	q.eng.c.DropGhost++
	_, end := q.sq.at(q.workRequest(p)).partOf(p)
	if p < b.piece {
		end = b.piece
	}
	q.executedTo(now, b, end)
	v, soonest := *b.slot(p), q.soonestAnswer()
	if q.rec.srtt == 0 {
		soonest = q.rec.longestRTT()
	}
	if v&slotAgain == 0 {
		b.tracks[responseTrack].arrived(v >> slotBits)
	}
	switch {
	case b.isLost(p) || (v&slotAgain != 0 && now-b.againAt < soonest): // it was sent before m
	case q.tolerance == minTolerance && now-b.orderedAt >= soonest:
		b.orderedAt = now
		q.loseResponses(now, b, m, q.max)
	default:
		b.markLost(p)
	}
	q.settle(now)
}

// loseResponses marks the missing responses from packet p to end as lost.
func (q *QP) loseResponses(now Time, b *scoreboard, p, end uint64) {
	for ; p < end; p++ {
		if *b.slot(p)&slotResponse != 0 && !b.isHeld(p) && !b.isLost(p) {
			b.markLost(p)
		}
	}
	q.eng.lastGap, q.eng.lastRewind = now, now
	q.lossEvent(now, 1)
}

// superseded reports whether the memory for response n of WQE i has the data of a later WQE
// already, which must stay there.
func (q *QP) superseded(b *scoreboard, i uint32, n uint64) bool {
	s := &q.sq
	w := s.at(i)
	for j := i + 1; j != s.started; j++ {
		later := s.at(j)
		if p := later.psn + n; p < q.max && w.sameMemory(later) && b.isHeld(p) {
			return true
		}
	}
	return false
}

// sameMemory reports whether two WQEs write to exactly the same memory, in one piece.
func (w *wqe) sameMemory(v *wqe) bool {
	return w.op.fetches() && v.op.fetches() && w.nsge == 1 && v.nsge == 1 && w.one == v.one
}

// fetches reports whether the operation writes to local memory.
func (o Op) fetches() bool { return o == OpRead || o == OpCmpSwap || o == OpFetchAdd }

// sharesMemory reports whether two WQEs have a byte of memory in common. Two regions may contain
// the same memory, so addresses in memory are compared. It also returns true if a key has become
// invalid, which fails the WQE in its turn.
func (q *QP) sharesMemory(i, j uint32) bool {
	for _, g := range q.sq.sgesAt(i) {
		for _, h := range q.sq.sgesAt(j) {
			if g.Length == 0 || h.Length == 0 {
				continue
			}
			x, v := q.eng.mrs.CheckLocal(q.pd, mr.Key(g.LKey), g.Addr, g.Length, mr.LocalWrite)
			y, u := q.eng.mrs.CheckLocal(q.pd, mr.Key(h.LKey), h.Addr, h.Length, mr.LocalWrite)
			if v != mr.OK && v != mr.Foreign || u != mr.OK && u != mr.Foreign {
				return true
			}
			if a, c := mr.AddrOf(x), mr.AddrOf(y); a < c+uint64(len(y)) && c < a+uint64(len(x)) {
				return true
			}
		}
	}
	return false
}
