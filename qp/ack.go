package qp

// ackState describes the ACK that a responder must send, and whether a CNP is pending.
type ackState struct {
	ackOwed  bool
	ackAsked bool   // the requester set AckReq
	ackNow   bool   // send it with the next transmission
	cnpOwed  bool   // a CNP is pending; see cnp.go
	unacked  uint32 // packets that the ACK will cover
	ackSince Time   // time since when it is pending, or requested
}

// ackDue returns the latest time to send the ACK.
func (a *ackState) ackDue() Time {
	if a.ackAsked {
		return a.ackSince + ackSoon
	}
	return a.ackSince + ackLate
}

func (a *ackState) acked() { *a = ackState{cnpOwed: a.cnpOwed} }

// oweAck records that an ACK is pending, and whether the requester asked for it.
func (q *QP) oweAck(now Time, asked bool) {
	if !q.ackOwed || (asked && !q.ackAsked) {
		q.ackOwed, q.ackAsked, q.ackSince, q.owes = true, asked, now, true
		if q.list != inRunq {
			q.eng.unlist(q)
			q.eng.awaitAck(q)
		}
	}
	if asked && (q.unacked >= ackBatch || q.state.Load()&prompt != 0) {
		q.ackAtOnce()
	}
}

// replyFirst reports whether a request may precede the ACK that is due. A program that had to be
// woken up takes longer than ackSoon to post its reply, which its peer waits for. Only the first
// packet of a step may, and only one for each ACK, so that a stream of requests does not delay the
// ACK, even if tokens or the backlog permit one packet per step.
func (q *QP) replyFirst(now Time) bool {
	return q.ackOwed && !q.ackNow && !q.nakOwed && !q.cnpOwed && q.answers.empty() &&
		q.typ == RC && q.State() == RTS && now != q.eng.lastData
}

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
	if q.ackAsked {
		e.lists[inAckSoon].push(q)
	} else {
		e.lists[inAckLate].push(q)
	}
}

// dueAck returns a QP whose ACK must be sent now. A requested ACK waits for a step in which the
// requester did not request it again and no data was sent.
func (e *Engine) dueAck(now Time) *QP {
	if q := e.lists[inAckSoon].head; q != nil &&
		(now >= q.ackDue() || (now > q.ackSince && now != e.lastData)) {
		return q
	}
	if q := e.lists[inAckLate].head; q != nil && now >= q.ackDue() {
		return q
	}
	return nil
}

// ReleaseAcks schedules all pending ACKs for the next transmissions and reports whether there
// are any. An owner calls it before it blocks: then neither side needs a timer for them.
func (e *Engine) ReleaseAcks() bool {
	some := false
	for _, id := range []listID{inAckSoon, inAckLate} {
		for q := e.lists[id].head; q != nil; q = e.lists[id].head {
			q.ackAtOnce() // takes q off the list
			some = true
		}
	}
	return some
}

// OwesAck reports whether a peer has requested an ACK that was not sent yet.
func (e *Engine) OwesAck() bool { return e.lists[inAckSoon].head != nil }

// PollAck is PollTransmit for the pending ACK of one QP. The ACK overtakes everything that waits
// for its turn, for tokens or for the backlog. The result is nil if no ACK is pending, or if
// responses must be sent before it.
func (e *Engine) PollAck(q *QP, b []byte) *Transmit {
	if !q.owes || !q.ackOwed || q.nakOwed || !q.answers.empty() {
		return nil
	}
	if q.list == inAckSoon || q.list == inAckLate {
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
	for _, id := range []listID{inAckSoon, inAckLate} {
		if q := e.lists[id].head; q != nil {
			t = min(t, q.ackDue())
		}
	}
	return t
}
