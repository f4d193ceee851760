package qp

import (
	"fmt"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/mr"
)

// FLUSH and ATOMIC WRITE (IBA annex A19). Both are one request packet and are answered by a READ
// response ONLY without payload; a plain ACK does not end them. At the requester they count as READs
// and atomics do against what may be outstanding.

// fillFlush copies a FLUSH into its slot.
func fillFlush(w *wqe, wr *SendWR) error {
	switch {
	case wr.Placement == 0 || wr.Placement&^placements != 0 || wr.Level >= numLevels:
		return fmt.Errorf("%w: FLUSH with placement %d, level %d; allowed are PlaceGlobal, PlacePersistent or both, and FlushRange or FlushRegion", ErrInvalidWR, wr.Placement, wr.Level)
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
	info := bth.RCFlush.Info()
	rest, netLen := q.header(b, bth.RCFlush, q.nxt, true, 0)
	bth.PutFETH(rest[info.FETH:], uint8(w.extra), uint8(w.extra>>8))
	bth.PutRETH(rest[info.RETH:], w.raddr, w.rkey, w.length)
	q.sentOne(now)
	return netLen + int(info.HeaderLen), netLen
}

func (q *QP) sendAtomicWrite(now Time, b []byte, w *wqe) (int, int) {
	if !q.canSendRead(w) {
		return 0, 0
	}
	info := bth.RCAtomicWrite.Info()
	rest, netLen := q.header(b, bth.RCAtomicWrite, q.nxt, true, 0)
	bth.PutRETH(rest[info.RETH:], w.raddr, w.rkey, atomicLen)
	if st := q.gather(rest[info.HeaderLen:info.HeaderLen+atomicLen], netLen+int(info.HeaderLen), q.sq.cur, 0); st != Success {
		q.halt(w, st)
		return 0, 0
	}
	q.eng.c.SentBytes += atomicLen
	q.sentOne(now)
	return netLen + int(info.HeaderLen) + atomicLen, netLen
}

// sentOne does the bookkeeping for a request of one packet that its own response ends.
func (q *QP) sentOne(now Time) {
	q.sq.cur++
	q.rdPush(q.nxt + 1)
	q.sent(now, 1, true)
}

// handleEmptyResponse ends the FLUSH or ATOMIC WRITE that is the oldest work request.
func (q *QP) handleEmptyResponse(now Time, w *wqe, p *bth.Packet) {
	if len(p.Payload) != 0 {
		q.fail(BadRespErr)
		return
	}
	q.answered(now, w, Success)
}

// flushRights are the rights that a FLUSH of each placement needs, of QP and region alike.
var flushRights = [placements + 1]mr.Access{
	PlaceGlobal:                   mr.FlushGlobal,
	PlacePersistent:               mr.FlushPersistent,
	PlaceGlobal | PlacePersistent: mr.FlushGlobal | mr.FlushPersistent,
}

// flushNeeds is what a FLUSH packet needs, and false if it makes no sense: no placement, or
// reserved bits.
func flushNeeds(p *bth.Packet) (need mr.Access, level Level, ok bool) {
	h := p.FETH()
	place := Placement(h.Placement())
	level = Level(h.Selectivity())
	if place == 0 || place > placements || level >= numLevels || len(p.Payload) > 0 {
		return 0, 0, false
	}
	return flushRights[place], level, true
}

// executeFlush makes what was written before last. The key is checked even if the range is empty:
// the placement that the region offers hangs on it.
//
// A FLUSH may be run any number of times, so nothing is kept of it; and since not every requester
// counts it against the outstanding READs and atomics that were agreed on (rxe does not), one too many
// is dropped until the answers before it have left, not refused.
func (q *QP) executeFlush(p *bth.Packet) verdict {
	need, level, ok := flushNeeds(p)
	h := p.RETH()
	if !ok || q.access&need != need || (level == FlushRange && h.DMALen() > MaxMessage) {
		return refuseInvalid
	}
	if v := q.answers.space(); v != accept {
		return v
	}
	switch q.eng.mrs.Flush(q.pd, q.scope, mr.Key(h.RKey()), h.VA(), h.DMALen(), level == FlushRegion, need) {
	case mr.OK:
		return q.queue(answer{psn: q.epsn, npkts: 1})
	case mr.Failed:
		return refuseOperation
	}
	return refuseAccess
}

// executeAtomicWrite stores 8 bytes as one, after everything that came before. They are the bytes
// of the payload as they stand: unlike the operands of other atomics they have no byte order of
// their own. The right is RemoteWrite.
func (q *QP) executeAtomicWrite(p *bth.Packet) verdict {
	h := p.RETH()
	if q.access&mr.RemoteWrite == 0 || len(p.Payload) != atomicLen || h.DMALen() != atomicLen || h.VA()&(atomicLen-1) != 0 {
		return refuseInvalid // A19.4.2: the address is naturally aligned
	}
	mem, v := q.eng.mrs.CheckScope(q.pd, q.scope, mr.Key(h.RKey()), h.VA(), atomicLen, mr.RemoteWrite)
	if v != mr.OK {
		return refuseAccess
	}
	if mr.AddrOf(mem)&(atomicLen-1) != 0 { // a region whose addresses are out of step with its memory
		return refuseInvalid
	}
	if v := q.answers.room(); v != accept {
		return v
	}
	mr.CopyIn(mem, p.Payload)
	return q.queue(answer{psn: q.epsn, npkts: 1, fresh: true})
}

// repeatEmpty answers a duplicate FLUSH or ATOMIC WRITE: it was executed, since its PSN is behind,
// and is not executed again - the 8 bytes may hold something newer by now. There is no result to be
// kept, so none can be lost.
func (q *QP) duplicateEmpty(psn uint64, p *bth.Packet) {
	need := mr.RemoteWrite
	if p.Info.Op == bth.OpFlush {
		need, _, _ = flushNeeds(p)
	}
	if need == 0 || q.access&need != need || !q.queueDuplicate(answer{psn: psn, npkts: 1, msn: q.msn}) {
		q.eng.c.DropReplay++
		return
	}
	q.eng.schedule(q)
}
