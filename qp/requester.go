package qp

import (
	"math/bits"

	"github.com/gorxe/gorxe/bth"
)

// requester is the sending part of a connected QP. It counts packets: una is the oldest
// unacknowledged packet, nxt the next to send, max the first that was never sent; una <= nxt <=
// max.
type requester struct {
	una, nxt, max    uint64
	lastAsked        uint64 // first packet after the last one with AckReq
	rdUsed           uint32 // outstanding READs and atomics
	completionWanted bool   // a signaled work request was sent since lastAsked
	drainEvent       bool   // in SQD, EventSQDrained is still due
	retries          uint8  // remaining timeouts
	rnrRetries       uint8

	win window
	rec recovery
}

// countBase keeps packet counts away from zero, so that subtraction never wraps.
const countBase = 1 << 32

func (q *QP) startRequester(psn bth.PSN) {
	r := &q.requester
	r.una = countBase + uint64(psn)
	r.nxt, r.max, r.lastAsked = r.una, r.una, r.una
	q.initWindow()
	r.rec.init()
}

// sizeReads changes the number of READs and atomics that may be outstanding. None is outstanding at
// that time. The ring is allocated for the first one, because many QPs never send any.
func (q *QP) sizeReads() {
	q.rdEnds = nil
	q.rdHead, q.rdUsed = 0, 0
}

// opcodes holds the opcode of a request packet by transport, operation and position. Bit 0 of the
// position marks the first packet of a message, bit 1 the last.
var opcodes = buildOpcodes()

func buildOpcodes() (t [numTypes][numOps][4]bth.Opcode) {
	transports := [numTypes]bth.Transport{bth.RC, bth.UC, bth.UD}
	ops := [numOps]bth.Operation{
		OpSend: bth.OpSend, OpSendImm: bth.OpSend, OpSendInv: bth.OpSend,
		OpWrite: bth.OpWrite, OpWriteImm: bth.OpWrite, OpRead: bth.OpReadRequest,
		OpCmpSwap: bth.OpCmpSwap, OpFetchAdd: bth.OpFetchAdd,
		OpFlush: bth.OpFlush, OpAtomicWrite: bth.OpAtomicWrite,
	}
	for typ, tr := range transports {
		for op, o := range ops {
			for pos := range 4 {
				end := pos&2 != 0
				imm := (Op(op) == OpSendImm || Op(op) == OpWriteImm) && end
				t[typ][op][pos] = bth.RequestOpcode(tr, o, pos&1 != 0, end, imm,
					Op(op) == OpSendInv && end)
			}
		}
	}
	return t
}

// transmit writes the QP's next packet: responses first, then requests. An ACK that was merely
// delayed until now lets one request precede it.
func (q *QP) transmit(now Time, b []byte) (n, netLen int) {
	if q.owes && q.hasAnswer(now) {
		if q.replyFirst(now) {
			if n, netLen = q.sendRequest(now, b); n > 0 {
				q.ackNow = true
				return n, netLen
			}
			q.eng.undefer()
		}
		if n, netLen = q.sendAnswer(now, b); n > 0 {
			return n, netLen
		}
	}
	switch st := q.State(); {
	case st != RTS && st != SQD:
		return 0, 0
	case q.typ == RC:
		return q.sendRequest(now, b)
	default:
		return q.sendUnreliable(b)
	}
}

// sendRequest writes the next request packet of an RC QP. It returns 0 if the QP must wait for the
// window, an RNR timer, a fence or an outstanding READ, or if the send queue is draining or broken.
func (q *QP) sendRequest(now Time, b []byte) (int, int) {
	s := &q.sq
	if q.rec.rnrUntil > now {
		return 0, 0
	}
	if q.win.repairing && q.cc.board.due() {
		q.endRNRWait(now)
		return q.sendRepair(now, b)
	}
	if s.cur == s.head.Load() {
		return 0, 0
	}
	q.endRNRWait(now)
	if q.una == q.max {
		q.afterIdle(now)
	}
	w := q.nextWQE()
	space := q.space()
	if w == nil || space <= 0 || w.status != Success || (q.win.modeled && q.awaitPace(now)) {
		return 0, 0
	}
	q.replied(now)
	switch w.op {
	case OpRead:
		return q.sendRead(now, b, w, space)
	case OpCmpSwap, OpFetchAdd:
		return q.sendAtomic(now, b, w)
	case OpFlush:
		return q.sendFlush(now, b, w)
	case OpAtomicWrite:
		return q.sendAtomicWrite(now, b, w)
	}
	return q.sendData(now, b, w, space)
}

// space returns how many more packets may be in flight. It is negative after the window has shrunk.
func (q *QP) space() int {
	n := int(q.win.size()) - int(q.nxt-q.una)
	if q.win.repairing {
		n = q.repairSpace(n)
	}
	return n
}

// nextWQE returns the work request whose packet is sent next, started; nil if it must wait. Local
// work requests before it are executed. The send queue must not be empty.
func (q *QP) nextWQE() *wqe {
	s := &q.sq
	w := s.at(s.cur)
	if w.op.local() {
		if w = q.passLocals(); w == nil {
			return nil
		}
	}
	if s.cur == s.started && !q.startWQE(w) {
		return nil
	}
	return w
}

// startWQE assigns PSNs to a work request if it may start. A fence delays the start (IBA 9.5).
func (q *QP) startWQE(w *wqe) bool {
	if q.State() != RTS || (w.flags&Fence != 0 && q.rdUsed > 0) {
		return false
	}
	mtu := q.mtu.Load()
	w.psn, w.npkts = q.max, 1
	if w.op <= OpRead && w.length > mtu {
		w.npkts = (w.length + mtu - 1) / mtu
	}
	if w.op == OpRead {
		w.part = uint8(bits.Len32(max(q.win.cwnd/4, minReadPart)) - 1)
	}
	q.sq.started++
	return true
}

// header writes the network headers and the BTH of a packet of a connected QP. It returns the
// packet from the BTH on and the length of the network headers.
func (q *QP) header(b []byte, op bth.Opcode, psn uint64, ackReq bool, pad uint32) (
	rest []byte, netLen int) {
	netLen = q.path.PutFrom(b, q.srcPort)
	rest = b[netLen:]
	bth.PutPlain(rest, op, false, ackReq, uint8(pad), q.pkey, q.destQP, wirePSN(psn))
	return rest, netLen
}

// sendData writes one packet of a SEND or WRITE.
func (q *QP) sendData(now Time, b []byte, w *wqe, space int) (total, netLen int) {
	s := &q.sq
	off, n, end := uint32(0), w.length, true
	if w.npkts > 1 {
		mtu := q.mtu.Load()
		off = s.curPkt * mtu
		n = min(mtu, w.length-off)
		end = s.curPkt == w.npkts-1
	}
	ask := q.wantsAck(w, space, end)
	total, netLen, st := q.putData(b, s.cur, q.nxt, off, n, ask)
	if st != Success {
		q.halt(w, st)
		return 0, 0
	}
	if end {
		if q.eng.runs && w.npkts > 1 {
			q.eng.tx.Ended = int(w.npkts)
		}
		s.cur, s.curPkt = s.cur+1, 0
	} else {
		s.curPkt++
		q.eng.inMessage = true
	}
	if q.win.repairing {
		q.cc.board.sentRequest(q.una, q.nxt, false)
	}
	q.sent(now, 1, ask)
	q.countSent(n)
	return total, netLen
}

// wantsAck reports whether the current packet of w must set AckReq, and records whether w needs a
// completion. end marks the last packet of the message.
func (q *QP) wantsAck(w *wqe, space int, end bool) bool {
	s := &q.sq
	q.completionWanted = q.completionWanted || w.flags&Signaled != 0 || s.signalAll
	next := s.cur + 1
	switch {
	case space == 1 || q.nxt-q.lastAsked >= q.win.ackInterval():
		return true
	case !end:
		return false
	case q.State() == SQD:
		return true
	case next != s.head.Load():
		// A local operation waits for the ACK and sends no packet that could ask for one.
		return s.at(next).op.local()
	}
	// The last packet for now asks if a completion is waiting for the ACK, or if the queue fills
	// up: even unsignaled requests must free their slots.
	return q.completionWanted || 2*s.used() >= uint32(s.depth)
}

// putData writes the packet that carries bytes [off, off+n) of the SEND or WRITE message of WQE i.
// The payload is padded with zeros to a multiple of 4 bytes (IBA 9.2.4).
func (q *QP) putData(b []byte, i uint32, psn uint64, off, n uint32, ask bool) (
	total, netLen int, st Status) {
	w := q.sq.at(i)
	pos, last := 0, off+n == w.length
	if off == 0 {
		pos |= 1
	}
	if last {
		pos |= 2
	}
	op := opcodes[q.typ][w.op][pos]
	info := op.Info()
	hdr, pad := uint32(info.HeaderLen), -n&3
	dest := q.destQP
	if q.typ == UD {
		netLen, dest = (*q.ahAt(i)).Put(b), w.destQP()
	} else {
		netLen = q.path.PutFrom(b, q.srcPort)
	}
	rest := b[netLen : netLen+int(hdr+n+pad)]
	bth.PutPlain(rest, op, last && w.flags&Solicited != 0, ask, uint8(pad), q.pkey, dest,
		wirePSN(psn))
	if info.RETH != 0 {
		bth.PutRETH(rest[info.RETH:], w.raddr, w.rkey, w.length)
	}
	if info.ImmDt != 0 {
		bth.PutImmDt(rest[info.ImmDt:], w.extra)
	}
	if info.IETH != 0 {
		bth.PutIETH(rest[info.IETH:], bth.RKey(w.extra))
	}
	if info.DETH != 0 {
		qkey := w.qkey()
		if qkey&0x80000000 != 0 { // IBA 10.2.5: a controlled Q_Key is replaced by the QP's own
			qkey = q.qkey
		}
		bth.PutDETH(rest[info.DETH:], qkey, q.qpn)
	}
	if st = q.gather(rest[hdr:hdr+n], netLen+int(hdr), i, off); st != Success {
		return 0, 0, st
	}
	clear(rest[hdr+n:])
	return netLen + len(rest), netLen, Success
}

// sendRead requests the next part of a READ. A READ of more than 1<<w.part packets is sent as
// several READ requests with consecutive PSNs, so that the window limits what the responder sends.
// The parts are fixed when the READ starts. A retry requests a part or the rest of one, but never
// crosses its end, because the responder knows only the requests that it received.
func (q *QP) sendRead(now Time, b []byte, w *wqe, space int) (int, int) {
	s := &q.sq
	part := uint32(1) << w.part
	npkts := min(part-s.curPkt%part, w.npkts-s.curPkt)
	if !q.canSendRead(w) || (space < int(npkts) && space < int(q.win.size())) {
		return 0, 0
	}
	n, netLen := q.putRead(b, w, q.nxt, s.curPkt, npkts)
	if s.curPkt += npkts; s.curPkt == w.npkts {
		s.cur, s.curPkt = s.cur+1, 0
	}
	q.sentRead(now, uint64(npkts))
	return n, netLen
}

// putRead writes a request for packets [pkt, pkt+n) of a READ.
func (q *QP) putRead(b []byte, w *wqe, psn uint64, pkt, n uint32) (total, netLen int) {
	mtu := q.mtu.Load()
	off := pkt * mtu
	rest, netLen := q.header(b, bth.RCReadRequest, psn, true, 0)
	bth.PutRETH(rest[bth.HeaderLen:], w.raddr+uint64(off), w.rkey, min(w.length-off, n*mtu))
	return netLen + int(bth.RCReadRequest.Info().HeaderLen), netLen
}

// sentRead updates the state for a READ, atomic, FLUSH or ATOMIC WRITE request that takes n PSNs.
func (q *QP) sentRead(now Time, n uint64) {
	q.rdPush(q.nxt + n)
	if q.win.repairing {
		q.cc.board.sentRead(q.una, q.nxt, n, false)
	}
	q.sent(now, n, true)
}

func (q *QP) sendAtomic(now Time, b []byte, w *wqe) (int, int) {
	if !q.canSendRead(w) {
		return 0, 0
	}
	n, netLen := q.putAtomic(b, q.sq.cur, q.nxt)
	q.sq.cur++
	q.sentRead(now, 1)
	return n, netLen
}

// putAtomic writes the request of WQE i, an atomic.
func (q *QP) putAtomic(b []byte, i uint32, psn uint64) (total, netLen int) {
	w, op := q.sq.at(i), bth.RCCmpSwap
	if w.op == OpFetchAdd {
		op = bth.RCFetchAdd
	}
	rest, netLen := q.header(b, op, psn, true, 0)
	compare, swapAdd := q.sq.operands(i).getOperands()
	bth.PutAtomicETH(rest[bth.HeaderLen:], w.raddr, w.rkey, swapAdd, compare)
	return netLen + int(op.Info().HeaderLen), netLen
}

// canSendRead reports whether another READ or atomic may be outstanding (IBA 9.7.3 "initiator
// depth").
func (q *QP) canSendRead(w *wqe) bool {
	if q.attr.MaxRdAtomic == 0 {
		q.halt(w, LocQPOpErr)
		return false
	}
	if q.rdEnds == nil {
		ends := make([]uint64, q.attr.MaxRdAtomic)
		q.rdEnds = &ends
	}
	return q.rdUsed < uint32(len(*q.rdEnds))
}

func (q *QP) rdPush(end uint64) {
	ends := *q.rdEnds
	ends[(uint32(q.rdHead)+q.rdUsed)%uint32(len(ends))] = end
	q.rdUsed++
}

// rdPop removes the READs and atomics that have been answered completely.
func (q *QP) rdPop() {
	for q.rdUsed > 0 && (*q.rdEnds)[q.rdHead] <= q.una {
		q.rdHead = uint8((int(q.rdHead) + 1) % len(*q.rdEnds))
		q.rdUsed--
	}
}

// sent updates the state for a request packet that takes n PSNs.
func (q *QP) sent(now Time, n uint64, ask bool) {
	psn := q.nxt
	if psn < q.max {
		q.eng.c.Retransmits++
		q.model().retransmits++
	}
	q.nxt += n
	if q.win.modeled {
		q.paced(now, uint32(n)*q.mtu.Load())
	}
	if ask {
		q.lastAsked, q.completionWanted = q.nxt, false
	}
	if q.nxt > q.max {
		if ask && psn >= q.max {
			if q.rec.startSample(now, q.nxt); q.win.modeled && q.rec.samplePSN == q.nxt {
				q.cc.started = q.cc.total
			}
		}
		q.max = q.nxt
	}
	// otherwise both are running
	if r := &q.rec; r.ackDeadline == Never || r.probeDeadline == Never {
		q.armRetry(now)
	}
}

// halt stops the send queue at a work request that failed locally. Earlier requests complete first.
func (q *QP) halt(w *wqe, st Status) {
	w.status = st
	if q.win.repairing {
		q.cc.board.halted = true
	}
	q.checkHalted()
}

// checkHalted completes the failed work request once it is the oldest.
func (q *QP) checkHalted() {
	s := &q.sq
	if tail := s.tail.Load(); (tail == s.cur || q.win.repairing) && tail != s.started &&
		s.at(tail).status != Success {
		q.fail(s.at(tail).status)
	}
}

// drained reports whether no work request is in progress. It is not enough that all sent packets
// are acknowledged: a message may be partly sent.
func (q *QP) drained() bool { return q.sq.tail.Load() == q.sq.started }

// checkDrained reports the end of draining (IBA 10.3.1.5).
func (q *QP) checkDrained() {
	if q.drainEvent && q.State() == SQD && q.drained() {
		q.drainEvent = false
		q.eng.event(Event{Kind: EventSQDrained, QP: q})
	}
}
