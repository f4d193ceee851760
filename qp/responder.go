package qp

import (
	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/mr"
)

// responder is the receiving half of a connected QP. Its first line is all of it that SENDs and WRITEs of one packet touch.
type responder struct {
	epsn    uint64  // count of the packet expected next
	ackable uint64  // count of the packet behind the last one that a plain ACK may name: see sendAck
	msn     bth.MSN // messages completed (IBA 9.7.7.1)

	// After a NAK the packets behind it are dropped until the refused one comes again.
	refused     bool
	refusedRNR  bool
	access      mr.Access // what the peer may do
	nakOwed     bool
	msg         msgKind // message under way
	established bool    // EventCommEst was raised
	scoped      bool    // there is a scope
	off         uint32  // bytes received of the message under way
	ackState
	listNext, listPrev *QP // on a list of ACKs

	va            uint64    // WRITE of several packets: where it goes
	dma           uint32    // its whole length
	key           bth.RKey  // of its region
	scope         *mr.Scope // what windows of type 2 are bound to; nil until the first is
	lastBeyondGap uint64    // last packet beyond the gap
	nakPSN        uint64
	nak           bth.Syndrome
	saved         *savedAtomics // nil until the first atomic
	answers       answerQueue
}

// msgKind is what the next packet continues.
type msgKind uint8

const (
	msgNone msgKind = iota
	msgSend
	msgWrite
)

// savedAtomic replays an atomic whose acknowledgement was lost (IBA 9.7.5.1.3): it must never be
// executed twice.
type savedAtomic struct {
	psn  uint64 // 0: empty
	orig uint64
	msn  bth.MSN
}

func (q *QP) startResponder(psn bth.PSN) {
	q.epsn = countBase + uint64(psn)
	q.ackable = q.epsn
}

// sizeResources makes room for n READs and atomics waiting to be answered, with none waiting. It
// keeps the newest saved results: their answers may have been lost.
func (q *QP) sizeResources(n uint8) {
	q.eng.returnAnswers(&q.answers)
	q.answers.init(int(n))
	old := q.saved
	if q.saved = nil; old == nil {
		return
	}
	for i := range old.list {
		if s := old.list[(int(old.next)+i)%len(old.list)]; s.psn != 0 {
			q.save(s)
		}
	}
}

// savedAtomics are the results of the last atomics, a ring.
type savedAtomics struct {
	list []savedAtomic
	next uint32
}

func (q *QP) save(s savedAtomic) {
	if q.saved == nil {
		q.saved = &savedAtomics{list: make([]savedAtomic, max(q.attr.MaxDestRdAtomic, 1))}
	}
	r := q.saved
	r.list[r.next] = s
	r.next = (r.next + 1) % uint32(len(r.list))
}

// verdict is what became of a request packet.
type verdict uint8

const (
	accept       verdict = iota // executed; acknowledge if asked
	acceptQueued                // executed; its answer is queued, which acknowledges
	drop                        // as if it had been lost
	refuseRNR                   // no receive posted: RNR NAK
	refuseInvalid
	refuseAccess
	refuseOperation
)

// handleRequest takes in a request packet of an RC QP. Before RTR and in ERR it is dropped
// (IBA 10.3.1.2, 10.3.1.7); else its PSN decides (IBA 9.7.4.1.2).
func (q *QP) handleRequest(now Time, p *bth.Packet) {
	if st := q.State(); st < RTR || st == Err {
		q.eng.c.DropNoQP++
		return
	}
	if !q.established {
		q.established = true
		if q.State() == RTR {
			q.eng.event(Event{Kind: EventCommEst, QP: q})
		}
	}
	switch psn := extend(q.epsn, p.BTH.PSN()); {
	case psn > q.epsn:
		q.outOfSequence(now, psn)
	case psn < q.epsn:
		q.duplicate(now, psn, p)
	default:
		q.refused, q.refusedRNR = false, false
		q.conclude(now, q.execute(p), p)
	}
}

// outOfSequence: packets were lost. One NAK for a gap (IBA 9.7.5.2.2) - unless the PSNs go back,
// which shows that the requester has come round again and the expected packet was lost anew.
func (q *QP) outOfSequence(now Time, psn uint64) {
	q.eng.c.OutOfSeqRequest++
	q.eng.lastGap = now
	again := !q.refusedRNR && psn <= q.lastBeyondGap
	q.lastBeyondGap = psn
	if q.refused && !again {
		return
	}
	q.refused = true
	q.eng.c.SentSeqNAK++
	q.oweNAK(bth.NAKSyndrome(bth.NAKPSNSequence))
}

// execute carries out the expected packet. The steps stand in the order of IBA 9.7.4.1.
func (q *QP) execute(p *bth.Packet) verdict {
	info := p.Info
	if info.Start != (q.msg == msgNone) { // IBA 9.7.4.1.3
		return refuseInvalid
	}
	switch info.Op {
	case bth.OpSend:
		return q.executeSend(p)
	case bth.OpWrite:
		return q.executeWrite(p)
	case bth.OpReadRequest:
		return q.executeRead(p)
	case bth.OpCmpSwap, bth.OpFetchAdd:
		return q.executeAtomic(p)
	case bth.OpFlush:
		return q.executeFlush(p)
	case bth.OpAtomicWrite:
		return q.executeAtomicWrite(p)
	}
	return refuseInvalid
}

// conclude answers according to the verdict.
func (q *QP) conclude(now Time, v verdict, p *bth.Packet) {
	switch v {
	case accept:
		if q.State() == Err { // its completion overran the CQ: the peer must not take it for received
			return
		}
		q.epsn++
		q.ackable = q.epsn
		if p.Info.End {
			q.msn = q.msn.Next()
		}
		q.unacked++
		q.oweAck(now, p.BTH.AckReq())
	case acceptQueued:
		q.eng.schedule(q)
	case drop:
	case refuseRNR:
		q.refused, q.refusedRNR = true, true
		q.eng.c.SentRNR++
		q.oweNAK(bth.RNRSyndrome(q.attr.MinRNRTimer))
	default:
		q.refuseFatally(v)
	}
}

// refusals says how a fatal refusal is answered and reported (IBA 9.9.3, classes of responder
// errors).
var refusals = map[verdict]struct {
	code  bth.NAKCode
	event EventKind
}{
	refuseInvalid:   {bth.NAKInvalidRequest, EventQPReqErr},  // IBA 9.7.5.2.3
	refuseAccess:    {bth.NAKRemoteAccess, EventQPAccessErr}, // IBA 9.7.5.2.4
	refuseOperation: {bth.NAKRemoteOperational, EventQPFatal},
}

// die answers with a fatal NAK. The QP goes to ERR at once, but what it owed before, and the NAK,
// still leave.
func (q *QP) refuseFatally(v verdict) {
	r := refusals[v]
	q.eng.c.SentErrNAK++
	q.oweNAK(bth.NAKSyndrome(r.code))
	q.eng.event(Event{Kind: r.event, QP: q})
	if q.State() != Err {
		q.toErr()
	}
}

// lengthOK: FIRST and MIDDLE carry exactly the path MTU, LAST 1 to it, ONLY 0 to it (IBA 9.7.4.1.6).
func (q *QP) lengthOK(p *bth.Packet) bool {
	n, mtu := uint32(len(p.Payload)), q.mtu.Load()
	switch {
	case !p.Info.End:
		return n == mtu
	case !p.Info.Start:
		return n >= 1 && n <= mtu
	default:
		return n <= mtu
	}
}

// executeSend scatters a SEND's packet into its receive; the last one may end a key (IBA 9.4.1.1).
func (q *QP) executeSend(p *bth.Packet) verdict {
	if p.Info.Start {
		q.off = 0
	} else if q.msg != msgSend {
		return refuseInvalid
	}
	if !q.recv.held && !q.takeRecv() {
		return refuseRNR
	}
	n := uint32(len(p.Payload))
	if !q.lengthOK(p) {
		return refuseInvalid
	}
	if n > q.recv.length-q.off {
		q.failRecv(LocLenErr)
		return refuseInvalid
	}
	if st := q.scatterRecv(q.off, p.Payload); st != Success {
		q.failRecv(st)
		return refuseOperation
	}
	q.off += n
	q.msg = msgSend
	if !p.Info.End {
		return accept
	}
	q.msg = msgNone
	if p.Info.HasInv {
		if err := q.eng.mrs.InvalidateScope(q.pd, q.scope, mr.Key(p.IETH().RKey())); err != nil {
			// IBA 9.9.3 class J: no NAK goes out, the requester hears nothing more.
			q.failRecv(MWBindErr)
			q.toErr()
			return drop
		}
	}
	q.received(p, WCRecv, q.off)
	return accept
}

// received completes the held receive.
func (q *QP) received(p *bth.Packet, op WCOpcode, n uint32) {
	wc := WC{ID: q.recv.id, Opcode: op, ByteLen: n, QPN: q.qpn, SrcQP: q.destQP}
	if p.Info.HasImm {
		wc.Flags, wc.Imm = wc.Flags|WCWithImm, p.ImmDt().Imm()
	}
	if p.Info.HasInv {
		wc.Flags, wc.InvKey = wc.Flags|WCWithInv, p.IETH().RKey()
	}
	if q.typ == UD {
		wc.Flags, wc.SrcQP = wc.Flags|WCGRH, p.DETH().SrcQP()
	}
	solicited := p.BTH.Solicited()
	if solicited {
		wc.Flags |= WCSolicited
	}
	q.recv.held = false
	q.complete(q.recvCQ, &wc, solicited)
}

func (q *QP) failRecv(st Status) {
	q.recv.held = false
	q.complete(q.recvCQ, &WC{ID: q.recv.id, Status: st, Opcode: WCRecv, QPN: q.qpn}, false)
}

func (q *QP) executeWrite(p *bth.Packet) verdict {
	if p.Info.Start && p.Info.End && !p.Info.HasImm {
		return q.executeWriteOnly(p)
	}
	dst, v := q.beginWrite(p)
	if v != accept {
		return v
	}
	n := uint32(len(p.Payload))
	left := q.dma - q.off
	if !q.lengthOK(p) || n > left || (p.Info.End && n != left) {
		return refuseInvalid
	}
	// The receive is taken before the memory is touched: a WRITE refused by RNR NAK has no effect.
	if p.Info.HasImm && !q.recv.held && !q.takeRecv() {
		return refuseRNR
	}
	if !p.Info.Start { // the region may have died since the first packet
		if dst, v = q.checkRemote(q.key, q.va+uint64(q.off), n, mr.RemoteWrite); v != accept {
			return v
		}
	}
	mr.CopyIn(dst, p.Payload)
	q.off += n
	q.msg = msgWrite
	if !p.Info.End {
		return accept
	}
	q.msg = msgNone
	if p.Info.HasImm {
		q.received(p, WCRecvWriteImm, q.dma)
	}
	return accept
}

// executeWriteOnly is executeWrite for the commonest of messages, which leaves nothing to be remembered.
func (q *QP) executeWriteOnly(p *bth.Packet) verdict {
	if q.access&mr.RemoteWrite == 0 {
		return refuseInvalid
	}
	h := p.RETH()
	dst, v := q.checkRemote(h.RKey(), h.VA(), h.DMALen(), mr.RemoteWrite)
	if v != accept {
		return v
	}
	if !q.lengthOK(p) || uint32(len(p.Payload)) != h.DMALen() {
		return refuseInvalid
	}
	mr.CopyIn(dst, p.Payload)
	return accept
}

// beginWrite checks a WRITE's first packet and gives the whole range, which must be allowed before
// the first byte is written (IBA 9.7.4.1.5); of other packets it checks that they continue a WRITE.
func (q *QP) beginWrite(p *bth.Packet) ([]byte, verdict) {
	if !p.Info.Start {
		if q.msg != msgWrite {
			return nil, refuseInvalid
		}
		return nil, accept
	}
	if q.access&mr.RemoteWrite == 0 {
		return nil, refuseInvalid
	}
	h := p.RETH()
	q.va, q.key, q.dma, q.off = h.VA(), h.RKey(), h.DMALen(), 0
	return q.checkRemote(q.key, q.va, q.dma, mr.RemoteWrite)
}

// checkRemote checks a range and gives its memory. A zero-length operation needs no valid key
// (IBA 9.7.4.1.5).
func (q *QP) checkRemote(key bth.RKey, va uint64, n uint32, need mr.Access) ([]byte, verdict) {
	if n == 0 {
		return nil, accept
	}
	if n > MaxMessage {
		return nil, refuseInvalid
	}
	var s *mr.Scope
	if q.scoped { // or its line is not looked at
		s = q.scope
	}
	b, v := q.eng.mrs.CheckScope(q.pd, s, mr.Key(key), va, n, need)
	if v != mr.OK {
		return nil, refuseAccess
	}
	return b, accept
}

// executeRead queues a READ's answer (IBA 9.4.4); an operation that the QP was not opened for is an
// invalid request (IBA 9.7.4.1.4).
func (q *QP) executeRead(p *bth.Packet) verdict {
	if q.access&mr.RemoteRead == 0 || len(p.Payload) > 0 {
		return refuseInvalid
	}
	h := p.RETH()
	a := answer{psn: q.epsn, va: h.VA(), key: h.RKey(), length: h.DMALen(), fresh: true}
	if _, v := q.checkRemote(a.key, a.va, a.length, mr.RemoteRead); v != accept {
		return v
	}
	mtu := q.mtu.Load()
	a.npkts = max(1, (a.length-1)/mtu+1)
	if a.length == 0 {
		a.npkts = 1
	}
	return q.queue(a)
}

func (q *QP) executeAtomic(p *bth.Packet) verdict {
	h := p.AtomicETH()
	if q.access&mr.RemoteAtomic == 0 || h.VA()&(atomicLen-1) != 0 || len(p.Payload) > 0 {
		return refuseInvalid // IBA 9.4.5: the address is naturally aligned
	}
	mem, v := q.eng.mrs.CheckScope(q.pd, q.scope, mr.Key(h.RKey()), h.VA(), atomicLen, mr.RemoteAtomic)
	if v != mr.OK {
		return refuseAccess
	}
	if v := q.answers.room(); v != accept {
		return v
	}
	a := answer{psn: q.epsn, npkts: 1, atomic: true, fresh: true}
	if p.Info.Op == bth.OpFetchAdd {
		a.orig = mr.FetchAdd(mem, h.SwapAdd())
	} else {
		a.orig = mr.CompareSwap(mem, h.Compare(), h.SwapAdd())
	}
	q.queue(a)
	q.save(savedAtomic{psn: a.psn, orig: a.orig, msn: q.msn})
	return acceptQueued
}

// queue takes an answer in and counts its request as executed.
func (q *QP) queue(a answer) verdict {
	v := q.answers.space()
	if a.fresh {
		v = q.answers.room()
	}
	if v != accept {
		return v
	}
	q.msn = q.msn.Next()
	a.msn = q.msn
	q.epsn += uint64(a.npkts)
	q.acked() // the answer acknowledges all requests before its own
	q.borrowAnswers()
	q.answers.insert(a)
	return acceptQueued
}

// duplicate answers a request that was executed before (IBA 9.7.5.1.3): SEND and WRITE are only
// acknowledged, READ is executed again, an atomic's saved result is sent again.
func (q *QP) duplicate(now Time, psn uint64, p *bth.Packet) {
	q.eng.c.DuplicateRequest++
	switch p.Info.Op {
	case bth.OpSend, bth.OpWrite:
		q.oweAckNow(now)
	case bth.OpReadRequest:
		q.duplicateRead(psn, p)
	case bth.OpCmpSwap, bth.OpFetchAdd:
		q.duplicateAtomic(psn)
	case bth.OpFlush, bth.OpAtomicWrite:
		q.duplicateEmpty(psn, p)
	default:
		q.eng.c.DropReplay++
	}
}

// repeatRead executes a READ again, or the rest of one whose answer was cut short: then the request
// begins at a later PSN and address. It must lie within what was asked before.
func (q *QP) duplicateRead(psn uint64, p *bth.Packet) {
	h := p.RETH()
	a := answer{psn: psn, va: h.VA(), key: h.RKey(), length: h.DMALen(), npkts: 1, msn: q.msn}
	if a.length > 0 {
		a.npkts = (a.length-1)/q.mtu.Load() + 1
	}
	_, v := q.checkRemote(a.key, a.va, a.length, mr.RemoteRead)
	if v != accept || q.access&mr.RemoteRead == 0 || psn+uint64(a.npkts) > q.epsn || !q.queueDuplicate(a) {
		q.eng.c.DropReplay++
		return
	}
	q.eng.schedule(q)
}

func (q *QP) duplicateAtomic(psn uint64) {
	if r := q.saved; r != nil {
		for i := range r.list {
			if s := &r.list[i]; s.psn == psn {
				if q.queueDuplicate(answer{psn: psn, npkts: 1, atomic: true, orig: s.orig, msn: s.msn}) {
					q.eng.schedule(q)
				}
				return
			}
		}
	}
	q.eng.c.DropReplay++
}

func (q *QP) oweNAK(s bth.Syndrome) {
	q.nakOwed, q.nak, q.nakPSN, q.owes = true, s, q.epsn, true
	q.eng.schedule(q)
}

// silence drops every answer still owed.
func (q *QP) dropAnswers() {
	q.eng.returnAnswers(&q.answers)
	q.nakOwed, q.owes = false, false
	q.acked()
	if q.list != inRunq {
		q.eng.unlist(q)
	}
}
