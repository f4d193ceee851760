package qp

// listID names the list that a QP is on. A QP is on one list at most.
type listID uint8

const (
	inNone    listID = iota
	inRunq           // may have packets to send; in Engine.runq or the queue of its class
	inAckSoon        // only has a requested ACK to send
	inAckLate        // only has an unrequested ACK to send
	inAckKept        // only has a requested ACK to send that waits for the program's reply
	numLists
)

// qpList is a linked list of QPs.
type qpList struct {
	head, tail *QP
	in         listID
}

func (l *qpList) push(q *QP) {
	q.list, q.listPrev, q.listNext = l.in, l.tail, nil
	if l.tail != nil {
		l.tail.listNext = q
	} else {
		l.head = q
	}
	l.tail = q
}

func (l *qpList) remove(q *QP) {
	if q.listPrev != nil {
		q.listPrev.listNext = q.listNext
	} else {
		l.head = q.listNext
	}
	if q.listNext != nil {
		q.listNext.listPrev = q.listPrev
	} else {
		l.tail = q.listPrev
	}
	q.list, q.listNext, q.listPrev = inNone, nil, nil
}

// unlist takes a QP off its list. Its slot in the run queue stays occupied.
func (e *Engine) unlist(q *QP) {
	switch q.list {
	case inNone:
	case inRunq:
		q.list = inNone
	default:
		e.lists[q.list].remove(q)
	}
}
