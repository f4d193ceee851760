package qp

// listID names the list that a QP is on; it is on one at most.
type listID uint8

const (
	inNone listID = iota
	inRunq
	inAckq
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
