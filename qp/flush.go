package qp

import (
	"fmt"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/mr"
)

// FLUSH and ATOMIC WRITE (IBA annex A19) consist of one request packet and are answered by a READ
// response ONLY without payload. A plain ACK does not complete them. At the requester they count as
// outstanding READs.

// fillFlush copies a FLUSH into its slot.
func fillFlush(w *wqe, wr *SendWR) error {
	switch {
	case wr.Placement == 0 || wr.Placement&^placements != 0 || wr.Level >= numLevels:
		return fmt.Errorf("%w: FLUSH with placement %d, level %d; use PlaceGlobal, "+
			"PlacePersistent or both, and FlushRange or FlushRegion", ErrInvalidWR, wr.Placement,
			wr.Level)
	case wr.Length > MaxMessage:
		return fmt.Errorf("%w: FLUSH of %d bytes, the limit is 2^31", ErrInvalidWR, wr.Length)
	}
	w.raddr, w.length = wr.RemoteAddr, wr.Length
	w.extra = uint32(wr.Placement) | uint32(wr.Level)<<8
	return nil
}

func (q *QP) sendFlush(now Time, b []byte, w *wqe) (int, int) {
	if !q.canSendRead(w) {
		return 0, 0
	}
	n, netLen := q.putFlush(b, w, q.nxt)
	q.sq.cur++
	q.sentRead(now, 1)
	return n, netLen
}

func (q *QP) putFlush(b []byte, w *wqe, psn uint64) (total, netLen int) {
	info := bth.RCFlush.Info()
	rest, netLen := q.header(b, bth.RCFlush, psn, true, 0)
	bth.PutFETH(rest[info.FETH:], uint8(w.extra), uint8(w.extra>>8))
	bth.PutRETH(rest[info.RETH:], w.raddr, w.rkey, w.length)
	return netLen + int(info.HeaderLen), netLen
}

func (q *QP) sendAtomicWrite(now Time, b []byte, w *wqe) (int, int) {
	if !q.canSendRead(w) {
		return 0, 0
	}
	n, netLen, st := q.putAtomicWrite(b, q.sq.cur, q.nxt)
	if st != Success {
		q.halt(w, st)
		return 0, 0
	}
	q.countSent(atomicLen)
	q.sq.cur++
	q.sentRead(now, 1)
	return n, netLen
}

// putAtomicWrite writes the request of WQE i, an ATOMIC WRITE.
func (q *QP) putAtomicWrite(b []byte, i uint32, psn uint64) (total, netLen int, st Status) {
	info, w := bth.RCAtomicWrite.Info(), q.sq.at(i)
	rest, netLen := q.header(b, bth.RCAtomicWrite, psn, true, 0)
	bth.PutRETH(rest[info.RETH:], w.raddr, w.rkey, atomicLen)
	n := int(info.HeaderLen)
	st = q.gather(rest[n:n+atomicLen], netLen+n, i, 0)
	return netLen + n + atomicLen, netLen, st
}

// handleEmptyResponse completes the FLUSH or ATOMIC WRITE that is the oldest work request.
func (q *QP) handleEmptyResponse(now Time, w *wqe, p *bth.Packet) {
	if len(p.Payload) != 0 {
		q.fail(BadRespErr)
		return
	}
	q.answered(now, w, Success)
}

// flushRights lists the access that a FLUSH of each placement needs, in both the QP and the region.
var flushRights = [placements + 1]mr.Access{
	PlaceGlobal:                   mr.FlushGlobal,
	PlacePersistent:               mr.FlushPersistent,
	PlaceGlobal | PlacePersistent: mr.FlushGlobal | mr.FlushPersistent,
}

// flushNeeds returns what a FLUSH packet needs. It returns false if the packet has no placement or
// sets reserved bits.
func flushNeeds(p *bth.Packet) (need mr.Access, level Level, ok bool) {
	h := p.FETH()
	place := Placement(h.Placement())
	level = Level(h.Selectivity())
	if place == 0 || place > placements || level >= numLevels || len(p.Payload) > 0 {
		return 0, 0, false
	}
	return flushRights[place], level, true
}

// executeFlush makes earlier writes visible or persistent. It checks the key even if the range is
// empty, because the region decides which placements are available.
//
// A FLUSH can run any number of times, so no result is saved. Not every requester counts it as an
// outstanding READ (rxe does not), so one that exceeds the limit is dropped instead of refused.
func (q *QP) executeFlush(p *bth.Packet) verdict {
	need, level, ok := flushNeeds(p)
	h := p.RETH()
	if !ok || q.access&need != need || (level == FlushRange && h.DMALen() > MaxMessage) {
		return refuseInvalid
	}
	if v := q.answers.space(); v != accept {
		return v
	}
	switch q.eng.mrs.Flush(q.pd, q.scope, mr.Key(h.RKey()), h.VA(), h.DMALen(),
		level == FlushRegion, need) {
	case mr.OK:
		return q.queue(answer{psn: q.epsn, npkts: 1})
	case mr.Failed:
		return refuseOperation
	}
	return refuseAccess
}

// executeAtomicWrite stores 8 bytes atomically, after all earlier requests. Unlike the operands of
// other atomics, the bytes are stored in the order of the payload. It needs RemoteWrite.
func (q *QP) executeAtomicWrite(p *bth.Packet) verdict {
	h := p.RETH()
	if q.access&mr.RemoteWrite == 0 || len(p.Payload) != atomicLen || h.DMALen() != atomicLen ||
		h.VA()&(atomicLen-1) != 0 {
		return refuseInvalid // A19.4.2: the address must be aligned
	}
	mem, v := q.eng.mrs.CheckScope(q.pd, q.scope, mr.Key(h.RKey()), h.VA(), atomicLen,
		mr.RemoteWrite)
	if v != mr.OK && v != mr.Foreign {
		return refuseAccess
	}
	if mr.AddrOf(mem)&(atomicLen-1) != 0 { // the region's addresses are not aligned like its memory
		return refuseInvalid
	}
	if v := q.answers.freshSpace(); v != accept {
		return v
	}
	q.eng.aim(h.RKey(), v)
	q.eng.place(mem, p)
	return q.queue(answer{psn: q.epsn, npkts: 1, fresh: true})
}

// duplicateEmpty answers a duplicate FLUSH or ATOMIC WRITE. It does not execute it again, because
// the memory may have a newer value by now.
func (q *QP) duplicateEmpty(psn uint64, p *bth.Packet) {
	need := mr.RemoteWrite
	if p.Info.Op == bth.OpFlush {
		need, _, _ = flushNeeds(p)
	}
	if need == 0 || q.access&need != need ||
		!q.queueDuplicate(answer{psn: psn, npkts: 1, msn: q.msn}) {
		q.eng.c.DropReplay++
		return
	}
	q.eng.schedule(q)
}
