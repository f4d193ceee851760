package qp

import (
	"encoding/binary"

	"github.com/gorxe/gorxe/bth"
)

// handleResponse processes an ACK, NAK, READ response or atomic acknowledgment.
func (q *QP) handleResponse(now Time, p *bth.Packet) {
	if st := q.State(); st != RTS && st != SQD {
		q.eng.c.DropNoQP++
		return
	}
	psn := extend(q.una, p.BTH.PSN())
	if psn < q.una || psn >= q.max {
		q.contact = true
		if p.Info.Op == bth.OpReadResponse {
			q.rec.spuriousProbe(psn)
			if psn < q.una {
				q.spurious(now, 1)
			}
		} else if len(p.Payload) > 0 && psn < q.una && q.attr.Selective {
			if ack, ok := bth.ParseSelACK(p.Payload); ok {
				q.reportedDuplicates(now, ack.Duplicates())
			}
		}
		q.eng.c.DropGhost++ // acknowledged before, or never sent (IBA 9.7.6.1 "ghost")
		if psn >= q.max {
			q.eng.c.OutOfWindow++
		} else {
			q.eng.checkDistance(q.una - psn)
		}
		return
	}
	switch p.Info.Op {
	case bth.OpReadResponse:
		q.handleReadResponse(now, psn, p)
	case bth.OpAtomicAck:
		q.handleAtomicAck(now, psn, p)
	default:
		q.handleAck(now, psn, p)
	}
}

func (q *QP) handleAck(now Time, psn uint64, p *bth.Packet) {
	s := p.AETH().Syndrome()
	if q.win.repairing || len(p.Payload) > 0 {
		if q.selectiveAck(now, psn, s, p.Payload) {
			return
		}
	}
	switch s.Kind() {
	case bth.SyndromeACK:
		q.ackThrough(now, psn)
	case bth.SyndromeRNR:
		q.eng.c.RcvdRNR++
		q.counted().RcvdRNR++
		if q.ackThrough(now, psn-1) && q.una == psn {
			q.rnrWait(now, s.RNRTimer())
		}
	case bth.SyndromeNAK:
		q.handleNAK(now, psn, s.NAKCode())
	default:
		q.eng.c.DropGhost++
		return
	}
	// attr lies in a cold cache line, so it comes last.
	if (q.una < psn || q.una == psn && s.Kind() == bth.SyndromeACK) && !q.attr.Selective {
		q.impliedNAK(now, psn, s)
	}
}

// nakStatus maps NAK codes to completion statuses (IBA 11.6.2). A sequence error has none.
var nakStatus = map[bth.NAKCode]Status{
	bth.NAKInvalidRequest:    RemInvReqErr,
	bth.NAKRemoteAccess:      RemAccessErr,
	bth.NAKRemoteOperational: RemOpErr,
}

// handleNAK processes a NAK, which acknowledges all packets before psn and refuses psn.
func (q *QP) handleNAK(now Time, psn uint64, code bth.NAKCode) {
	if code == bth.NAKPSNSequence {
		q.eng.c.RcvdSeqNAK++
		q.counted().RcvdSeqNAK++
	} else {
		q.eng.c.RcvdErrNAK++
	}
	if !q.ackThrough(now, psn-1) || q.una != psn {
		return
	}
	if st, fatal := nakStatus[code]; fatal {
		q.fail(st)
	} else if code == bth.NAKPSNSequence {
		q.lost(now, psn)
	}
}

// ackThrough acknowledges all packets up to psn. Only its response completes a READ or atomic: if
// one precedes psn, its response was lost, which is an implied NAK (IBA 9.7.6.1). It reports
// whether the QP still works.
func (q *QP) ackThrough(now Time, psn uint64) bool {
	s := &q.sq
	from, implied := q.una, false
	for q.una <= psn {
		w := s.at(s.tail.Load())
		if w.op >= OpRead {
			implied = true
			break
		}
		end := w.psn + uint64(w.npkts)
		if psn+1 < end {
			q.una = psn + 1
			break
		}
		q.una = end
		if q.retire(Success); q.State() == Err {
			return false
		}
		if s.locals > 0 {
			if q.retireLocals(); q.State() == Err {
				return false
			}
		}
	}
	if q.una != from {
		q.progress(now, q.una-from)
	}
	if implied && q.State() != Err {
		q.eng.c.ImpliedNAK++
		q.openScoreboard()
		q.handleSelectiveAck(now, psn, bth.ACKNoLimit, nil)
	}
	return q.State() != Err
}

// progress updates the QP after n packets were acknowledged.
func (q *QP) progress(now Time, n uint64) {
	s := &q.sq
	if q.una > q.nxt && !q.resume() { // a retransmission turned out to be unnecessary
		q.nxt = q.una
		q.rewindCursor()
	}
	q.rdPop()
	q.retries, q.rnrRetries = q.rec.retryCnt, q.rec.rnrRetryCnt
	q.rec.progress()
	q.delivered(n)
	q.reached(now, q.una)
	q.restartRetry(now)
	if s.cur != s.head.Load() {
		q.eng.schedule(q)
	}
	q.checkHalted()
	q.checkDrained()
}

// expects returns the READ or atomic that a response with this PSN answers: the oldest work
// request, after the response has acknowledged everything before it. If it is nil, drop the
// response.
func (q *QP) expects(now Time, psn uint64) *wqe {
	if q.win.repairing {
		return nil
	}
	if psn > q.una && !q.ackThrough(now, psn-1) {
		return nil
	}
	s := &q.sq
	tail := s.tail.Load()
	if psn != q.una || tail == s.started {
		if psn > q.una { // a gap
			q.openScoreboard()
		}
		return nil
	}
	return s.at(tail)
}

func (q *QP) handleReadResponse(now Time, psn uint64, p *bth.Packet) {
	w := q.expects(now, psn)
	switch {
	case q.win.repairing:
		if q.State() != Err {
			q.handleSelectiveResponse(now, psn, p)
		}
		return
	case w != nil && w.op == OpRead:
	case w != nil && (w.op == OpFlush || w.op == OpAtomicWrite):
		q.handleEmptyResponse(now, w, p)
		return
	default:
		q.eng.c.DropGhost++
		return
	}
	// The PSN decides, not FIRST, MIDDLE, LAST or ONLY: some responders answer a retry within a
	// READ with MIDDLE, others with FIRST. The length must be right.
	mtu := q.mtu.Load()
	off := uint32(psn-w.psn) * mtu
	if uint32(len(p.Payload)) != min(mtu, w.length-off) {
		q.fail(BadRespErr)
		return
	}
	st := q.eng.scatter(q.pd, q.sq.sgesAt(q.sq.tail.Load()), off, p.Payload)
	q.answered(now, w, st)
	if !p.Info.End {
		q.expectNext()
	}
}

func (q *QP) handleAtomicAck(now Time, psn uint64, p *bth.Packet) {
	w := q.expects(now, psn)
	if q.win.repairing {
		q.handleSelectiveResponse(now, psn, p)
		return
	}
	if w == nil || (w.op != OpCmpSwap && w.op != OpFetchAdd) {
		q.eng.c.DropGhost++
		return
	}
	v := q.eng.word[:]
	binary.NativeEndian.PutUint64(v, p.AtomicAckETH().Original())
	st := q.eng.scatter(q.pd, q.sq.sgesAt(q.sq.tail.Load()), 0, v)
	q.answered(now, w, st)
}

// answered completes one packet of the oldest READ or atomic.
func (q *QP) answered(now Time, w *wqe, st Status) {
	if st != Success {
		q.fail(st)
		return
	}
	q.una++
	if q.una == w.psn+uint64(w.npkts) {
		if q.retire(Success); q.State() == Err {
			return
		}
		if q.sq.locals > 0 {
			if q.retireLocals(); q.State() == Err {
				return
			}
		}
	}
	q.progress(now, 1)
}
