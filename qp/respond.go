package qp

import (
	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/internal/fence"
	"github.com/gorxe/gorxe/mr"
)

// answer is a READ or atomic to be answered. FLUSH and ATOMIC WRITE are answered as a READ of no
// bytes is.
type answer struct {
	psn    uint64
	va     uint64
	orig   uint64 // atomic: the value before
	key    bth.RKey
	length uint32
	npkts  uint32
	sent   uint32
	msn    bth.MSN
	atomic bool
	fresh  bool // counts against what the peer may have outstanding: no repetition, no FLUSH
}

// answerQueue holds answers in the order of their PSNs. Fresh ones are as many as the peer may have
// outstanding; as many again may be repetitions.
//
// An idle QP has no room for answers: see lendAnswers.
type answerQueue struct {
	list  []answer // list[first:] wait
	first uint16
	fresh uint16
	limit uint16
}

func (a *answerQueue) init(limit int) { *a = answerQueue{limit: uint16(limit)} }

// lendAnswers gives the QP room for answers when the first is queued; keepAnswers takes it back when the last has
// left. Rooms are of the size that the QP's owner allowed (MaxDestRdAtomic), and there are never more than QPs: what peers
// ask for makes them a few times at first, and then no more.
func (q *QP) borrowAnswers() {
	a, e := &q.answers, q.eng
	q.owes = true
	if a.list != nil {
		return
	}
	if answerLists := e.answerLists[a.limit]; len(answerLists) > 0 {
		a.list, e.answerLists[a.limit] = answerLists[len(answerLists)-1], answerLists[:len(answerLists)-1]
		return
	}
	a.list = make([]answer, 0, 2*int(a.limit))
}

func (e *Engine) returnAnswers(a *answerQueue) {
	if a.list != nil {
		e.answerLists[a.limit] = append(e.answerLists[a.limit], a.list[:0])
	}
	*a = answerQueue{limit: a.limit}
}

// repeatAnswer is answerQueue.repeat.
func (q *QP) queueDuplicate(n answer) bool {
	if q.answers.limit == 0 {
		return false
	}
	q.borrowAnswers()
	return q.answers.insertDuplicate(n)
}

func (a *answerQueue) waiting() int { return len(a.list) - int(a.first) }

func (a *answerQueue) empty() bool { return int(a.first) == len(a.list) }

// room tells whether a fresh answer fits: a peer with more outstanding than agreed breaks the
// protocol (IBA 9.7.4.1); with too many repetitions waiting it has to come again.
func (a *answerQueue) room() verdict {
	if a.fresh >= a.limit {
		return refuseInvalid
	}
	return a.space()
}

// space tells the same for an answer that does not count against the limit.
func (a *answerQueue) space() verdict {
	switch {
	case a.limit == 0:
		return refuseInvalid
	case a.waiting() >= 2*int(a.limit):
		return drop
	}
	return accept
}

// insert keeps the order of PSNs.
func (a *answerQueue) insert(n answer) {
	if a.first > 0 && len(a.list) == cap(a.list) {
		a.list = a.list[:copy(a.list, a.list[a.first:])]
		a.first = 0
	}
	if n.fresh {
		a.fresh++
	}
	i := len(a.list)
	a.list = append(a.list, n)
	// It goes even before one that is half out: the requester went back to it, and will come for the
	// other again.
	for ; i > int(a.first) && a.list[i-1].psn > n.psn; i-- {
		a.list[i] = a.list[i-1]
	}
	a.list[i] = n
}

// repeat takes in the answer to a duplicate request. If it is still to come anyway, nothing is
// added; if the answer under way has passed that point, it goes back.
func (a *answerQueue) insertDuplicate(n answer) bool {
	for i := int(a.first); i < len(a.list); i++ {
		w := &a.list[i]
		if n.psn < w.psn || n.psn >= w.psn+uint64(w.npkts) || w.atomic != n.atomic {
			continue
		}
		if at := uint32(n.psn - w.psn); at < w.sent {
			w.sent = at
		}
		return true
	}
	if a.waiting() >= 2*int(a.limit) {
		return false
	}
	a.insert(n)
	return true
}

func (a *answerQueue) pop() {
	if a.list[a.first].fresh {
		a.fresh--
	}
	if a.first++; a.empty() {
		a.list, a.first = a.list[:0], 0
	}
}

// hasAnswer tells whether transmit has an answer to send now.
func (q *QP) hasAnswer(now Time) bool {
	if q.owes = q.ackOwed || q.nakOwed || !q.answers.empty(); !q.owes {
		return false
	}
	return !q.answers.empty() || q.nakOwed || (q.ackOwed && (q.ackNow || now >= q.ackDue()))
}

// sendAnswer writes the next answer (IBA 9.7.5.1.1): READs and atomics in order, then the NAK or ACK that stands
// behind them.
func (q *QP) sendAnswer(b []byte) (n, netLen int) {
	for !q.answers.empty() {
		a := &q.answers.list[q.answers.first]
		if a.atomic {
			n, netLen = q.sendAtomicAck(b, a)
			q.popAnswer()
			return n, netLen
		}
		if n, netLen = q.sendReadResponse(b, a); n > 0 {
			if a.sent++; a.sent == a.npkts {
				q.popAnswer()
			}
			return n, netLen
		}
		// The region died between request and answer.
		q.nakPSN = a.psn + uint64(a.sent)
		q.eng.returnAnswers(&q.answers)
		q.refuseAt(q.nakPSN)
	}
	if q.nakOwed {
		return q.sendNAK(b)
	}
	if q.ackOwed {
		return q.sendAck(b)
	}
	q.owes = false
	return 0, 0
}

// popAnswer forgets the answer that was sent whole.
func (q *QP) popAnswer() {
	if q.answers.pop(); q.answers.empty() {
		q.eng.returnAnswers(&q.answers)
	}
}

// refuseAt ends the QP with a remote access error at a PSN that was accepted before.
func (q *QP) refuseAt(psn uint64) {
	q.refuseFatally(refuseAccess)
	q.nakPSN = psn
}

func (q *QP) sendReadResponse(b []byte, a *answer) (n, netLen int) {
	mtu := q.mtu.Load()
	off := a.sent * mtu
	length := min(mtu, a.length-off)
	op := readOpcode(a.sent == 0, a.sent == a.npkts-1)
	info := op.Info()
	hdr, pad := uint32(info.HeaderLen), -length&3
	rest, netLen := q.header(b, op, a.psn+uint64(a.sent), false, pad)
	if length > 0 {
		src, v := q.eng.mrs.CheckScope(q.pd, q.scope, mr.Key(a.key), a.va+uint64(off), length, mr.RemoteRead)
		if v != mr.OK {
			return 0, 0
		}
		if a.sent == 0 {
			fence.Order() // a READ looks after the WRITEs before it have landed: see mr's memory model, rule 3
		}
		q.eng.copyOut(rest[hdr:hdr+length], netLen+int(hdr), src)
		for i := range pad {
			rest[hdr+length+i] = 0
		}
	}
	if info.AETH != 0 {
		bth.PutAETH(rest[info.AETH:], bth.ACKNoLimit, a.msn)
	}
	q.eng.c.SentBytes += uint64(length)
	return netLen + int(hdr+length+pad), netLen
}

func readOpcode(first, last bool) bth.Opcode {
	switch {
	case first && last:
		return bth.RCReadResponseOnly
	case first:
		return bth.RCReadResponseFirst
	case last:
		return bth.RCReadResponseLast
	}
	return bth.RCReadResponseMiddle
}

func (q *QP) sendAtomicAck(b []byte, a *answer) (n, netLen int) {
	rest, netLen := q.header(b, bth.RCAtomicAck, a.psn, false, 0)
	info := bth.RCAtomicAck.Info()
	bth.PutAETH(rest[info.AETH:], bth.ACKNoLimit, a.msn)
	bth.PutAtomicAckETH(rest[info.AtomicAckETH:], a.orig)
	return netLen + int(info.HeaderLen), netLen
}

// sendAck acknowledges everything up to the last SEND or WRITE. It never names a READ or an atomic behind it: those are
// acknowledged by their answers alone (IBA 9.7.5.1.1), and a requester that still lacks one may take the ACK
// for it. (rxe of Linux 6.1 then completes the READ, without its last bytes, and kills the QP.)
func (q *QP) sendAck(b []byte) (n, netLen int) {
	q.acked()
	q.eng.c.SentAcks++
	return q.putAck(b, q.ackable-1, bth.ACKNoLimit)
}

// sendNAK refuses a packet; it acknowledges those before it, so no ACK is owed any more.
func (q *QP) sendNAK(b []byte) (n, netLen int) {
	q.nakOwed = false
	q.acked()
	return q.putAck(b, q.nakPSN, q.nak)
}

func (q *QP) putAck(b []byte, psn uint64, s bth.Syndrome) (n, netLen int) {
	rest, netLen := q.header(b, bth.RCAck, psn, false, 0)
	info := bth.RCAck.Info()
	bth.PutAETH(rest[info.AETH:], s, q.msn)
	return netLen + int(info.HeaderLen), netLen
}
