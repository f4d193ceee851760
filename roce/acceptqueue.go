package roce

import (
	"container/list"
	"sync"

	"github.com/gorxe/gorxe/roce/cm"
)

// incoming is a request that waits for Accept.
type incoming struct {
	id    *cmID
	event cm.Event
}

// acceptQueue holds the requests that wait for Accept. Its length is limited by the backlog, which
// the connection manager enforces, too. A request leaves the queue when its sender cancels it or
// stops waiting. Otherwise, canceled requests could fill the queue.
type acceptQueue struct {
	wake chan struct{} // capacity 1

	mu   sync.Mutex
	list list.List // of incoming
	max  int
	over bool
}

func newAcceptQueue(n int) *acceptQueue {
	return &acceptQueue{wake: make(chan struct{}, 1), max: n}
}

// put appends a request. It returns false if the queue is full or shut.
func (q *acceptQueue) put(in incoming) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.over || q.list.Len() >= q.max {
		return false
	}
	in.id.queue, in.id.entry = q, q.list.PushBack(in)
	q.signal()
	return true
}

// drop removes the request of a cmID that has ended, if it is still in the queue.
func (q *acceptQueue) drop(id *cmID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.remove(id)
}

func (q *acceptQueue) remove(id *cmID) {
	if id.entry != nil {
		q.list.Remove(id.entry)
		id.entry = nil
	}
}

// get removes and returns the oldest request. If there are more, it signals another caller of
// Accept.
func (q *acceptQueue) get() (in incoming, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.list.Len() == 0 {
		return in, false
	}
	in = q.list.Front().Value.(incoming)
	if q.remove(in.id); q.list.Len() > 0 {
		q.signal()
	}
	return in, true
}

func (q *acceptQueue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// pass signals another caller of Accept if there is something to return.
func (q *acceptQueue) pass() {
	if q.pending() {
		q.signal()
	}
}

func (q *acceptQueue) pending() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.list.Len() > 0 || q.over
}

func (q *acceptQueue) isShut() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.over {
		q.signal() // the next caller
	}
	return q.over
}

func (q *acceptQueue) shut() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.over = true
	q.signal()
}
