package qp

import (
	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/mr"
)

// responder is the receiving part of a connected QP. SENDs and WRITEs of one packet use only its
// first cache line.
type responder struct {
	epsn    uint64  // count of the next expected packet
	ackable uint64  // count after the last packet that a plain ACK may acknowledge: see sendAck
	msn     bth.MSN // messages completed (IBA 9.7.7.1)

	// After a NAK, packets are dropped until the refused one arrives again. With selective repeat
	// they are held.
	refused     bool
	selAck      bool      // selective repeat: the next ACK reports a duplicate
	access      mr.Access // what the peer may do
	nakOwed     bool
	msg         msgKind // message in progress
	established bool    // EventCommEst was raised
	scoped      bool    // scope is not nil
	off         uint32  // bytes received of the message in progress
	ackState
	listNext, listPrev *QP // links in a list of pending ACKs

	va            uint64    // WRITE of several packets: its address
	dma           uint32    // its total length
	key           bth.RKey  // its R_Key
	scope         *mr.Scope // the type 2 windows bound to the QP; nil until the first
	reorder       *reorder  // packets held after a gap; nil without a gap and with go-back-N
	nakPSN        uint64
	lastBeyondGap bth.PSN // last packet received after a gap
	nak           bth.Syndrome
	refusedRNR    bool     // the refused packet got an RNR NAK; valid if refused is set
	duplicates    uint16   // selective repeat: packets received again
	history       *history // nil until the first atomic or duplicate READ
	answers       answerQueue
}

// msgKind is the kind of message that the next packet continues.
type msgKind uint8

const (
	msgNone msgKind = iota
	msgSend
	msgWrite
)

func (q *QP) startResponder(psn bth.PSN) {
	q.epsn = countBase + uint64(psn)
	q.ackable = q.epsn
}

// sizeResources sets the number of READs and atomics that may wait for their answers. None is
// waiting. It keeps the newest saved results, whose answers may have been lost.
func (q *QP) sizeResources(n uint8) {
	q.eng.returnAnswers(&q.answers)
	q.answers.init(int(n))
	h := q.history
	if h == nil {
		return
	}
	old, next := h.atomics, int(h.next)
	h.atomics, h.next = nil, 0
	for i := range old {
		if s := old[(next+i)%len(old)]; s.psn != 0 {
			q.save(s)
		}
	}
}

// verdict is the result of executing a request packet.
type verdict uint8

const (
	accept       verdict = iota // executed; acknowledge if requested
	acceptQueued                // executed; the queued answer acknowledges it
	drop                        // treat as lost
	refuseRNR                   // no receive is posted: RNR NAK
	refuseInvalid
	refuseAccess
	refuseOperation
)

// commEstWindow is how far the PSN of the first packet may be from the expected one, as packets
// before it were lost. Other packets do not show that their sender knows the starting PSN, so they
// do not establish a connection.
const commEstWindow = 256

// handleRequest processes a request packet of an RC QP. Before RTR and in ERR it is dropped (IBA
// 10.3.1.2, 10.3.1.7). Otherwise the PSN decides (IBA 9.7.4.1.2).
func (q *QP) handleRequest(now Time, p *bth.Packet) {
	if st := q.State(); st < RTR || st == Err {
		q.eng.c.DropNoQP++
		return
	}
	psn := extend(q.epsn, p.BTH.PSN())
	if !q.established && psn+1 >= q.epsn && psn < q.epsn+commEstWindow {
		q.established = true
		if q.State() == RTR {
			q.eng.event(Event{Kind: EventCommEst, QP: q})
		}
	}
	switch {
	case psn > q.epsn:
		q.outOfSequence(now, psn, p)
	case psn < q.epsn:
		q.duplicate(now, psn, p)
	case q.refused:
		q.afterGap(now, p)
	default:
		v := q.execute(p)
		q.respond(now, v, p)
		if v == accept && !p.Info.End {
			q.expectNext()
		}
	}
}

// maxDistance is how far the PSN of a request from an honest peer usually is from the expected one.
// A forged packet that guesses its PSN is within this distance in one of 128 attempts.
const maxDistance = 1 << 16

// checkDistance counts a packet whose PSN is far from the expected one. Such packets are handled
// like others: a peer may have a long queue of large READs.
func (e *Engine) checkDistance(d uint64) {
	if d > maxDistance {
		e.c.OutOfWindow++
	}
}

// outOfSequence handles a packet after a gap. With selective repeat it is held. Otherwise it is
// dropped; see sequenceNAK.
func (q *QP) outOfSequence(now Time, psn uint64, p *bth.Packet) {
	q.eng.c.OutOfSeqRequest++
	q.counted().OutOfSeqRequests++
	q.eng.checkDistance(psn - q.epsn)
	q.eng.lastGap = now
	if q.attr.Selective {
		q.hold(now, psn, p)
		return
	}
	q.sequenceNAK(p.BTH.PSN())
}

// sequenceNAK handles a packet after a gap that is dropped. It sends one NAK per gap (IBA
// 9.7.5.2.2). If PSNs go back, the requester has gone back too and the expected packet was lost
// again, so it sends another NAK.
func (q *QP) sequenceNAK(psn bth.PSN) {
	again := !q.refusedRNR && !psn.After(q.lastBeyondGap)
	q.lastBeyondGap = psn
	if q.refused && !again {
		return
	}
	q.refused = true
	q.eng.c.SentSeqNAK++
	q.counted().SentSeqNAK++
	q.oweNAK(bth.NAKSyndrome(bth.NAKPSNSequence))
}

// execute executes the expected packet. The checks are in the order of IBA 9.7.4.1.
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

// respond answers a request according to the verdict.
func (q *QP) respond(now Time, v verdict, p *bth.Packet) {
	switch v {
	case accept:
		q.accepted(now, p.Info.End, p.BTH.AckReq())
		if q.state.Load()&ackFirst != 0 && q.ackAsked == wasAsked && p.Info.End &&
			(p.Info.Op == bth.OpSend || p.Info.HasImm) {
			q.ackAsked = askedFirst
		}
	case acceptQueued:
		q.eng.schedule(q)
	case drop:
	case refuseRNR:
		q.refused, q.refusedRNR = true, true
		q.eng.c.SentRNR++
		q.counted().SentRNR++
		q.oweNAK(bth.RNRSyndrome(q.attr.MinRNRTimer))
	default:
		q.refuseFatally(v)
	}
}

// accepted acknowledges a request packet that was executed. end says that it ends its message, and
// asked that the peer asks for the ACK.
func (q *QP) accepted(now Time, end, asked bool) {
	if q.State() == Err { // its completion overran the CQ: do not acknowledge it
		return
	}
	q.epsn++
	q.ackable = q.epsn
	if end {
		q.msn = q.msn.Next()
	}
	q.unacked++
	q.oweAck(now, asked)
}

// refusals lists the NAK code and the event of each fatal refusal (IBA 9.9.3, classes of responder
// errors).
var refusals = map[verdict]struct {
	code  bth.NAKCode
	event EventKind
}{
	refuseInvalid:   {bth.NAKInvalidRequest, EventQPReqErr},  // IBA 9.7.5.2.3
	refuseAccess:    {bth.NAKRemoteAccess, EventQPAccessErr}, // IBA 9.7.5.2.4
	refuseOperation: {bth.NAKRemoteOperational, EventQPFatal},
}

// refuseFatally answers with a fatal NAK. The QP goes to ERR at once, but the NAK and earlier
// responses are still sent.
func (q *QP) refuseFatally(v verdict) {
	r := refusals[v]
	q.eng.c.SentErrNAK++
	if v == refuseAccess {
		q.eng.c.BadRKey++
	}
	q.oweNAK(bth.NAKSyndrome(r.code))
	q.eng.event(Event{Kind: r.event, QP: q})
	if q.State() != Err {
		q.toErr()
	}
}

// queue adds an answer and counts its request as executed.
func (q *QP) queue(a answer) verdict {
	v := q.answers.space()
	if a.fresh {
		v = q.answers.freshSpace()
	}
	if v != accept {
		return v
	}
	q.msn = q.msn.Next()
	a.msn = q.msn
	q.epsn += uint64(a.npkts)
	q.acked() // the answer acknowledges all earlier requests
	q.borrowAnswers()
	a.stamp = q.answerStamp()
	q.answers.insert(a)
	return acceptQueued
}

// duplicate answers a request that was executed before (IBA 9.7.5.1.3): a SEND or WRITE is only
// acknowledged, a READ is executed again, and for an atomic the saved result is sent again.
func (q *QP) duplicate(now Time, psn uint64, p *bth.Packet) {
	q.eng.c.DuplicateRequest++
	q.counted().DuplicateRequests++
	q.contact = true
	if p.Info.Op != bth.OpReadRequest { // each one uses the PSNs of all its responses
		q.eng.checkDistance(q.epsn - psn)
	}
	switch p.Info.Op {
	case bth.OpSend, bth.OpWrite:
		if q.attr.Selective && len(p.Payload) > 0 { // a keepalive has no payload
			q.countDuplicate()
			if r := q.reorder; r != nil { // a probe asks for everything
				r.last, r.repeated = r.top-1, false
			}
		}
		q.oweAckNow(now)
	case bth.OpReadRequest:
		q.duplicateRead(now, psn, p)
	case bth.OpCmpSwap, bth.OpFetchAdd:
		q.duplicateAtomic(psn)
	case bth.OpFlush, bth.OpAtomicWrite:
		q.duplicateEmpty(psn, p)
	default:
		q.eng.c.DropReplay++
	}
}

// duplicateRead executes a READ again, or the rest of one whose answer was cut short. In that case
// the request starts at a later PSN and address. It must lie within the earlier request. See
// history for the limit on repeated packets.
func (q *QP) duplicateRead(now Time, psn uint64, p *bth.Packet) {
	h := p.RETH()
	a := answer{psn: psn, va: h.VA(), key: h.RKey(), length: h.DMALen(), msn: q.msn, again: true}
	a.npkts = q.readPackets(a.length)
	_, v := q.checkRemote(a.key, a.va, a.length, mr.RemoteRead)
	if v == refuseAccess {
		q.eng.c.BadRKey++
	}
	if v != accept || q.access&mr.RemoteRead == 0 || psn+uint64(a.npkts) > q.epsn ||
		!q.mayRepeat(now, &a) || !q.queueDuplicate(a) {
		q.eng.c.DropReplay++
		return
	}
	q.eng.schedule(q)
}

func (q *QP) duplicateAtomic(psn uint64) {
	if h := q.history; h != nil {
		for i := range h.atomics {
			if s := &h.atomics[i]; s.psn == psn {
				if q.queueDuplicate(answer{psn: psn, npkts: 1, atomic: true, orig: s.orig,
					msn: s.msn}) {
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

// dropAnswers discards all pending responses.
func (q *QP) dropAnswers() {
	q.eng.returnAnswers(&q.answers)
	q.nakOwed, q.cnpOwed, q.owes = false, false, false
	q.acked()
	if q.list != inRunq {
		q.eng.unlist(q)
	}
}
