package qp

// ackState describes the ACK that a responder must send, and whether a CNP is pending.
type ackState struct {
	ackOwed  bool
	ackAsked ackRequest
	ackNow   bool   // send it with the next transmission
	cnpOwed  bool   // a CNP is pending; see cnp.go
	unacked  uint32 // packets that the ACK will cover
	ackSince Time   // time since when it is pending, or requested
}

// ackRequest tells whether the requester of a pending ACK set AckReq.
type ackRequest uint8

const (
	notAsked ackRequest = iota
	wasAsked
	// The message completed a receive of a QP with InitAttr.AckFirst.
	askedFirst
)

// ackLists are the lists of QPs that only have an ACK to send.
var ackLists = [...]listID{inAckSoon, inAckLate, inAckKept}

// ackDue returns the latest time to send the ACK.
func (q *QP) ackDue() Time {
	switch {
	case q.list == inAckKept:
		return q.ackSince + ackKept
	case q.ackAsked == notAsked:
		return q.ackSince + ackLate
	}
	return q.ackSince + ackSoon
}

// acked records that the ACK was sent. ackSince stays; see QP.replied.
func (a *ackState) acked() { *a = ackState{cnpOwed: a.cnpOwed, ackSince: a.ackSince} }

// oweAck records that an ACK is pending, and whether the requester asked for it.
func (q *QP) oweAck(now Time, asked bool) {
	if asked && q.canReply() {
		q.rec.replies.await()
	}
	switch {
	case q.list == inAckKept: // another message came instead of the reply
		q.ackAtOnce()
	case !q.ackOwed || (asked && q.ackAsked == notAsked):
		q.ackOwed, q.ackAsked, q.ackSince, q.owes = true, notAsked, now, true
		if asked {
			q.ackAsked = wasAsked
		}
		if q.list != inRunq {
			q.eng.unlist(q)
			q.eng.awaitAck(q)
		}
	}
	if asked && (q.unacked >= ackBatch || q.state.Load()&prompt != 0) {
		q.ackAtOnce()
	}
}

// canReply reports whether the program may reply to what the peer has sent, and KeepAcks is on. In
// the middle of a message and after a gap, the peer may wait for the ACK before it sends the rest.
func (q *QP) canReply() bool { return q.eng.keeping && q.msg == msgNone && q.reorder == nil }

// replied records that the program has posted a request, perhaps as the reply to a message. A late
// reply does not count: an ACK would not have waited for it.
func (q *QP) replied(now Time) {
	switch r := &q.rec.replies; {
	case *r&awaited == 0:
	case now-q.ackSince > ackKept:
		r.missed()
	default:
		r.answered()
	}
}

// replyFirst reports whether a request may precede the ACK that is due. A program that had to be
// woken up takes longer than ackSoon to post its reply, which its peer waits for. Only the first
// packet of a step may, and only one for each ACK, so that a stream of requests does not delay the
// ACK, even if tokens or the backlog permit one packet per step.
func (q *QP) replyFirst(now Time) bool {
	return q.ackOwed && !q.ackNow && q.ackAsked != askedFirst && !q.nakOwed && !q.cnpOwed &&
		q.answers.empty() && q.typ == RC && q.State() == RTS && now != q.eng.lastData
}

// ackPrecedes reports whether the pending ACK must precede the next request, because of
// InitAttr.AckFirst. It does not interrupt a message before it is due.
func (q *QP) ackPrecedes() bool { return q.ackAsked == askedFirst && q.sq.cur == q.sq.started }

// oweAckNow schedules an ACK for a duplicate, whose requester has waited long enough.
func (q *QP) oweAckNow(now Time) {
	q.oweAck(now, true)
	q.ackAtOnce()
}

func (q *QP) ackAtOnce() {
	q.ackNow = true
	q.eng.schedule(q)
}

// awaitAck adds a QP that only has an ACK to send to the list of its delay. Each list is in order
// of time.
func (e *Engine) awaitAck(q *QP) {
	if q.ackAsked == notAsked {
		e.lists[inAckLate].push(q)
	} else {
		e.lists[inAckSoon].push(q)
	}
}

// keep makes the due ACK of a QP wait for the program's reply, if KeepAcks wants that. It does not
// while the QP itself waits for an ACK: the peer could wait in the same way. Nor does it if the QP
// has a short Local ACK Timeout: the peer probably has the same.
func (e *Engine) keep(q *QP) bool {
	if q.list == inAckKept || !q.canReply() || q.ackAsked == notAsked || !q.rec.replies.soon() ||
		q.una != q.max || q.rec.timeout != AckNever && q.rec.timeout < patient {
		return false
	}
	e.unlist(q)
	e.lists[inAckKept].push(q)
	return true
}

// dueAck returns a QP whose ACK must be sent now. So that it does not delay the program's reply, a
// requested ACK waits for a step after that of the request in which no data was sent.
func (e *Engine) dueAck(now Time) *QP {
	for q := e.lists[inAckSoon].head; q != nil; q = e.lists[inAckSoon].head {
		if now < q.ackDue() && (now <= q.ackSince || now == e.lastData) {
			break
		}
		if !e.keep(q) {
			return q
		}
	}
	for _, id := range []listID{inAckLate, inAckKept} {
		if q := e.lists[id].head; q != nil && now >= q.ackDue() {
			return q
		}
	}
	return nil
}

// ReleaseAcks schedules all pending ACKs for the next transmissions, except those of KeepAcks, and
// reports whether there are any. An owner calls it before it blocks: then neither side needs a
// timer for them.
func (e *Engine) ReleaseAcks() bool {
	some := false
	for _, id := range []listID{inAckSoon, inAckLate} {
		for q := e.lists[id].head; q != nil; q = e.lists[id].head {
			if !e.keep(q) {
				q.ackAtOnce() // takes q off the list
				some = true
			}
		}
	}
	return some
}

// KeepAcks sets whether the ACK of a message waits up to ackKept for the program's reply if the
// program has answered most of the latest messages. It is for an owner that sleeps whenever it is
// idle: neither the owner nor the peer then has to wake up for the ACK alone. ACKs that are kept
// stay so when it is turned off.
func (e *Engine) KeepAcks(on bool) { e.keeping = on }

// KeptAckDue returns when the first ACK of KeepAcks is due; false: there is none.
func (e *Engine) KeptAckDue() (Time, bool) {
	if q := e.lists[inAckKept].head; q != nil {
		return q.ackDue(), true
	}
	return 0, false
}

// OwesAck reports whether a peer has requested an ACK that was not sent yet and is not kept.
func (e *Engine) OwesAck() bool { return e.lists[inAckSoon].head != nil }

// PollAck is PollTransmit for the pending ACK of one QP. The ACK overtakes everything that waits
// for its turn, for tokens or for the backlog. The result is nil if no ACK is pending, or if
// responses must be sent before it.
func (e *Engine) PollAck(q *QP, b []byte) *Transmit {
	if !q.owes || !q.ackOwed || q.nakOwed || !q.answers.empty() {
		return nil
	}
	if q.list != inRunq {
		e.unlist(q)
	}
	tx := &e.tx
	tx.Payload, tx.PayloadAt, tx.Class = nil, 0, q.Class()
	tx.Ended, tx.Next = 0, 0
	tx.Len, tx.NetLen = q.sendAck(b)
	tx.QPN = q.qpn
	e.c.SentPkts++
	e.classes[tx.Class].SentPkts++
	return tx
}

// nextAck returns the time at which the next ACK is due.
func (e *Engine) nextAck() Time {
	t := Never
	for _, id := range ackLists {
		if q := e.lists[id].head; q != nil {
			t = min(t, q.ackDue())
		}
	}
	return t
}

// replies tells how the program answers messages. The low bits count messages in a row that it
// answered before the next one arrived, up to maxReplies. While there are many, an owner that has
// to sleep leaves the ACK of a message to the reply; see KeepAcks.
type replies uint8

// awaited is set from a message that asks for an ACK until the reply.
const awaited replies = 0x80

// await records the arrival of a message that asks for an ACK.
func (r *replies) await() {
	r.missed()
	*r |= awaited
}

// missed records that a message was not answered, if there is one.
func (r *replies) missed() {
	if *r&awaited != 0 {
		*r = *r &^ awaited / 2
	}
}

// answered records that the program has answered the message.
func (r *replies) answered() { *r = min(*r&^awaited+1, maxReplies) }

// soon reports whether the reply to the latest message will probably follow soon.
func (r replies) soon() bool { return r >= awaited|manyReplies }
