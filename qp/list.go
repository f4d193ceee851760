package qp

// listID names the list that a QP is on; it is on one at most.
type listID uint8

const (
	inNone    listID = iota
	inRunq           // may have something to send; served in turns by Engine.runq
	inAckSoon        // owes an ACK that was asked for, and nothing else
	inAckLate        // owes an ACK that nobody waits for, and nothing else
	numLists
)

// qpList is a queue through the QPs themselves.
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

// unlist takes a QP off its list. In the run queue its place stays, empty.
func (e *Engine) unlist(q *QP) {
	switch q.list {
	case inNone:
	case inRunq:
		q.list = inNone
	default:
		e.lists[q.list].remove(q)
	}
}
