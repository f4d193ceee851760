package qp

// When acknowledgements leave.
//
// An ACK sent at once costs a frame and a kick for every message, and it delays the data that the
// user posts in answer. So an ACK waits for company. How long depends on whether the requester
// asked for it (AckReq): asked, it leaves in the first turn in which nothing else came or went, after
// ackSoon at the latest, or with ackBatch packets waiting for it. Not asked, nobody waits for it but
// the requester's queue slots: it leaves after ackLate, well before the requester's first probe.
// IBA 9.7.5.1.2 allows both: one ACK covers all packets before it, and any packet may be acknowledged.
const (
	ackSoon  Time = 4_000
	ackLate  Time = 50_000
	ackBatch      = 16
)

// ackState is what a responder owes.
type ackState struct {
	ackOwed  bool
	ackAsked bool   // the requester set AckReq
	ackNow   bool   // with the next transmission
	unacked  uint32 // packets
	ackSince Time   // owed, or asked for, since
}

// ackDue is when the ACK leaves at the latest.
func (a *ackState) ackDue() Time {
	if a.ackAsked {
		return a.ackSince + ackSoon
	}
	return a.ackSince + ackLate
}

func (a *ackState) acked() { *a = ackState{} }

// oweAck notes that there is something to acknowledge, and whether the requester asked.
func (q *QP) oweAck(now Time, asked bool) {
	if !q.ackOwed || (asked && !q.ackAsked) {
		q.ackOwed, q.ackAsked, q.ackSince, q.owes = true, asked, now, true
		if q.list != inRunq {
			q.eng.unlist(q)
			q.eng.awaitAck(q)
		}
	}
	if asked && q.unacked >= ackBatch {
		q.ackAtOnce()
	}
}

// oweAckNow is for a duplicate: its requester has waited long enough.
func (q *QP) oweAckNow(now Time) {
	q.oweAck(now, true)
	q.ackAtOnce()
}

func (q *QP) ackAtOnce() {
	q.ackNow = true
	q.eng.schedule(q)
}

// awaitAck puts a QP that owes nothing but an ACK on the list where that ripens; each is in the
// order of time.
func (e *Engine) awaitAck(q *QP) {
	if q.ackAsked {
		e.lists[inAckSoon].push(q)
	} else {
		e.lists[inAckLate].push(q)
	}
}

// dueAck is a QP whose ACK leaves now. One that was asked for waits for the end of the turn in which
// its requests came, and of one in which data left.
func (e *Engine) dueAck(now Time) *QP {
	if q := e.lists[inAckSoon].head; q != nil && (now >= q.ackDue() || (now > q.ackSince && now != e.lastData)) {
		return q
	}
	if q := e.lists[inAckLate].head; q != nil && now >= q.ackDue() {
		return q
	}
	return nil
}

// RipenAcks lets all ACKs that are owed leave with the next transmissions, and tells whether there are any. It is for an owner
// that is about to block: the peer needs no timer for an answer that it has, nor the owner one for an answer that it owes.
func (e *Engine) ReleaseAcks() bool {
	some := false
	for _, id := range []listID{inAckSoon, inAckLate} {
		for q := e.lists[id].head; q != nil; q = e.lists[id].head {
			q.ackAtOnce() // which takes it off the list
			some = true
		}
	}
	return some
}

// nextAck is when the next ACK is due at the latest.
func (e *Engine) nextAck() Time {
	t := Never
	for _, id := range []listID{inAckSoon, inAckLate} {
		if q := e.lists[id].head; q != nil {
			t = min(t, q.ackDue())
		}
	}
	return t
}
