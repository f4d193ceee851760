package qp

import (
	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/internal/fence"
	"github.com/gorxe/gorxe/mr"
)

// answer is the response to a READ or atomic that is still to be sent. FLUSH and ATOMIC WRITE are
// answered like a READ of zero bytes.
type answer struct {
	psn    uint64
	va     uint64
	orig   uint64 // atomic: the original value
	key    bth.RKey
	length uint32
	npkts  uint32
	sent   uint32
	loaded uint32 // bytes that were loaded from another process; see loadAnswer
	msn    bth.MSN
	top    uint32 // largest value of sent
	atomic bool
	fresh  bool   // counts against MaxDestRdAtomic: neither a duplicate nor a FLUSH
	again  bool   // answers a duplicate READ
	stamp  uint64 // when it was queued; see answerStamp
}

// advance counts a packet of the answer as sent.
func (a *answer) advance() {
	a.sent++
	a.top = max(a.top, a.sent)
}

// answerQueue holds answers in PSN order: up to limit fresh ones, and in all up to twice as many,
// duplicates included.
//
// An idle QP has no buffer for answers; see borrowAnswers.
type answerQueue struct {
	list  []answer // list[first:] is waiting
	first uint16
	fresh uint16
	limit uint16
}

func (a *answerQueue) init(limit int) { *a = answerQueue{limit: uint16(limit)} }

// borrowAnswers gives the QP a buffer when its first answer is queued, and returnAnswers takes it
// back when the last one has been sent. The size of a buffer follows from MaxDestRdAtomic, and
// there are never more buffers than QPs, so allocation stops after a while whatever peers send.
func (q *QP) borrowAnswers() {
	a, e := &q.answers, q.eng
	q.owes = true
	if a.list != nil {
		return
	}
	if free := e.answerLists[a.limit]; len(free) > 0 {
		last := len(free) - 1
		a.list, e.answerLists[a.limit] = free[last], free[:last]
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

// queueDuplicate queues the answer to a duplicate request. It reports false if there is no space.
func (q *QP) queueDuplicate(n answer) bool {
	if q.answers.limit == 0 {
		return false
	}
	q.borrowAnswers()
	n.stamp = q.answerStamp()
	if q.attr.Selective && q.answers.repeatsPart(&n, q.mtu.Load()) {
		return q.answers.insertRepeat(n)
	}
	return q.answers.insertDuplicate(n)
}

func (a *answerQueue) waiting() int { return len(a.list) - int(a.first) }

func (a *answerQueue) empty() bool { return int(a.first) == len(a.list) }

// freshSpace reports whether a fresh answer fits. A peer that exceeds the agreed number of
// outstanding requests violates the protocol (IBA 9.7.4.1). If duplicates take the space, the
// request is dropped.
func (a *answerQueue) freshSpace() verdict {
	if a.fresh >= a.limit {
		return refuseInvalid
	}
	return a.space()
}

// space does the same for an answer that does not count against the limit.
func (a *answerQueue) space() verdict {
	switch {
	case a.limit == 0:
		return refuseInvalid
	case a.waiting() >= 2*int(a.limit):
		return drop
	}
	return accept
}

// insert adds an answer in PSN order.
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
	// It may go before an answer that is partly sent: the requester went back to the earlier PSN,
	// and will request the rest of the other one again. With selective repeat the rest of the other
	// one follows.
	for ; i > int(a.first) && a.list[i-1].psn+uint64(a.list[i-1].sent) > n.psn; i-- {
		a.list[i] = a.list[i-1]
	}
	a.list[i] = n
}

// insertDuplicate adds the answer to a duplicate request. If a queued answer still covers it,
// nothing is added. If that answer is past the requested packet, it goes back to it.
func (a *answerQueue) insertDuplicate(n answer) bool {
	if w := a.covering(&n); w != nil {
		w.sent = min(w.sent, uint32(n.psn-w.psn))
		return true
	}
	return a.insertRepeat(n)
}

// insertRepeat adds the answer to a duplicate request that no queued answer covers. The requester
// may receive all packets of a later answer with it, and send its next request before that answer
// has been sent. Such an answer does not count against the limit any more.
func (a *answerQueue) insertRepeat(n answer) bool {
	if a.waiting() >= 2*int(a.limit) {
		return false
	}
	for i := int(a.first); i < len(a.list); i++ {
		w := &a.list[i]
		if w.fresh && w.psn >= n.psn && w.psn+uint64(w.npkts) <= n.psn+uint64(n.npkts) {
			w.fresh = false
			a.fresh--
		}
	}
	a.insert(n)
	return true
}

// repeatsPart reports whether a queued answer has sent the first of the requested packets. With
// selective repeat only these are sent again, by an answer of their own: n is shortened to what the
// queued answer has sent.
func (a *answerQueue) repeatsPart(n *answer, mtu uint32) bool {
	w := a.covering(n)
	if w == nil || n.psn >= w.psn+uint64(w.sent) {
		return false
	}
	n.npkts = min(n.npkts, uint32(w.psn+uint64(w.sent)-n.psn))
	n.length = min(n.length, n.npkts*mtu)
	return true
}

// covering returns the queued answer that contains the first packet of n, or nil.
func (a *answerQueue) covering(n *answer) *answer {
	for i := int(a.first); i < len(a.list); i++ {
		w := &a.list[i]
		if n.psn >= w.psn && n.psn < w.psn+uint64(w.npkts) && w.atomic == n.atomic {
			return w
		}
	}
	return nil
}

func (a *answerQueue) pop() {
	if a.list[a.first].fresh {
		a.fresh--
	}
	if a.first++; a.empty() {
		a.list, a.first = a.list[:0], 0
	}
}

// hasAnswer reports whether transmit has a response to send now.
func (q *QP) hasAnswer(now Time) bool {
	if q.owes = q.ackOwed || q.nakOwed || q.cnpOwed || !q.answers.empty(); !q.owes {
		return false
	}
	return !q.answers.empty() || q.nakOwed || q.cnpOwed ||
		(q.ackOwed && (q.ackNow || q.ackPrecedes() || now >= q.ackDue()))
}

// sendAnswer writes the next response (IBA 9.7.5.1.1): READs and atomics in order, then a NAK or
// ACK. A CNP goes before them.
func (q *QP) sendAnswer(now Time, b []byte) (n, netLen int) {
	if q.cnpOwed {
		return q.sendCNP(now, b)
	}
	for !q.answers.empty() {
		a := &q.answers.list[q.answers.first]
		if a.atomic {
			n, netLen = q.sendAtomicAck(b, a)
			q.popAnswer(now)
			return n, netLen
		}
		if !q.mayResend(now, a) {
			q.eng.c.DropReplay++
			q.popAnswer(now)
			continue
		}
		if n, netLen = q.sendReadResponse(b, a); n > 0 {
			a.advance()
			if a.sent < a.npkts {
				q.eng.inMessage = true
			} else {
				q.popAnswer(now)
			}
			return n, netLen
		}
		// The region was deregistered after the request. The peer may have the first answer to a
		// duplicate, and may have invalidated the key itself; then this is no error.
		if !a.fresh {
			q.eng.c.DropReplay++
			q.popAnswer(now)
			continue
		}
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

// popAnswer removes an answer that has been sent completely. A held request may have waited for its
// slot.
func (q *QP) popAnswer(now Time) {
	if q.answers.pop(); q.answers.empty() {
		q.eng.returnAnswers(&q.answers)
	}
	if r := q.reorder; r != nil && r.stalled {
		q.fill(now)
	}
}

// refuseAt fails the QP with a remote access error at a PSN that was accepted earlier.
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
		src, v := q.eng.mrs.CheckScope(q.pd, q.scope, mr.Key(a.key), a.va+uint64(off), length,
			mr.RemoteRead)
		if v != mr.OK && !(v == mr.Foreign && q.loadAnswer(a, off, length)) {
			return 0, 0
		}
		if a.sent == 0 {
			// the READ observes memory after earlier WRITEs: rule 3 of mr's memory model
			fence.Order()
		}
		q.eng.copyOut(rest[hdr:hdr+length], netLen+int(hdr), src)
		for i := range pad {
			rest[hdr+length+i] = 0
		}
	}
	if info.AETH != 0 {
		bth.PutAETH(rest[info.AETH:], bth.ACKNoLimit, a.msn)
	}
	q.countSent(length)
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

// sendAck acknowledges everything up to the last SEND or WRITE. It never acknowledges a READ or
// atomic after that: only their responses do (IBA 9.7.5.1.1), and a requester that lacks such a
// response may mistake the ACK for it. (rxe of Linux 6.1 then completes a READ that lacks its last
// bytes.)
func (q *QP) sendAck(b []byte) (n, netLen int) {
	if q.eng.keeping && q.rec.replies.soon() && q.sq.cur == q.sq.head.Load() {
		q.rec.replies.missed() // the ACK was kept, but there was no reply
	}
	if (q.refused || q.selAck) && q.attr.Selective {
		return q.sendSelAck(b)
	}
	q.acked()
	q.eng.c.SentAcks++
	return q.putAck(b, q.ackable-1, bth.ACKNoLimit)
}

// sendNAK refuses a packet. It acknowledges all earlier packets, so no other ACK is needed.
func (q *QP) sendNAK(b []byte) (n, netLen int) {
	q.nakOwed = false
	q.acked()
	if q.reorder != nil && q.refusedRNR {
		return q.putSelAck(b, q.nakPSN, q.nak)
	}
	return q.putAck(b, q.nakPSN, q.nak)
}

func (q *QP) putAck(b []byte, psn uint64, s bth.Syndrome) (n, netLen int) {
	rest, netLen := q.header(b, bth.RCAck, psn, false, 0)
	info := bth.RCAck.Info()
	bth.PutAETH(rest[info.AETH:], s, q.msn)
	return netLen + int(info.HeaderLen), netLen
}
