package events

import "container/heap"

// Queue holds functions and the virtual times at which to call them. Those of the same time are in
// the order in which they were added. The zero Queue is empty.
type Queue[Time ~int64] struct {
	list  list[Time]
	added int
}

type event[Time ~int64] struct {
	at Time
	n  int // in the order of Add
	do func()
}

// Len returns the number of events.
func (q *Queue[Time]) Len() int { return len(q.list) }

// Add adds an event.
func (q *Queue[Time]) Add(at Time, do func()) {
	q.added++
	heap.Push(&q.list, event[Time]{at, q.added, do})
}

// Next returns the time of the next event. The queue must not be empty.
func (q *Queue[Time]) Next() Time { return q.list[0].at }

// Take removes the next event and returns its function. The queue must not be empty.
func (q *Queue[Time]) Take() (do func()) { return heap.Pop(&q.list).(event[Time]).do }

// list implements heap.Interface.
type list[Time ~int64] []event[Time]

func (l list[Time]) Len() int { return len(l) }

func (l list[Time]) Less(i, j int) bool {
	return l[i].at < l[j].at || l[i].at == l[j].at && l[i].n < l[j].n
}

func (l list[Time]) Swap(i, j int) { l[i], l[j] = l[j], l[i] }

func (l *list[Time]) Push(x any) { *l = append(*l, x.(event[Time])) }

func (l *list[Time]) Pop() any {
	last := len(*l) - 1
	e := (*l)[last]
	*l = (*l)[:last]
	return e
}
