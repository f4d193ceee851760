package sched

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"time"
)

// Bounds of a queue.
const (
	MaxCapacity = 1 << 24 // IDs: there are no more QPNs (IBA 9.2.5)
	MaxWindow   = 4096    // QPs ahead: what is fetched earlier than that has left any cache before its turn
)

// Errors of New and SetWindow.
var (
	ErrCapacity = errors.New("sched: capacity out of range: choose at least the number of QPs")
	ErrWindow   = errors.New("sched: prefetch window out of range: choose 0 (off) to 4096 QPs")
)

// Queue is the scheduling queue and, as a second cursor over the same ring, the prefetch queue. ID is what the owner knows a QP by.
//
// An ID is in the queue at most once: the owner keeps one bit an ID that says whether it is, sets it when it pushes and clears
// it when it pops. Nothing can be taken out of the middle. When a QP dies in the queue its ID stays, and the owner finds at
// Prefetch and at Pop that nobody is there. The bit belongs to the ID, not to the QP: a new QP under the same ID inherits a set
// bit, and with it the dead one's place.
type Queue[ID comparable] struct {
	ring []ID
	// The cursors run freely and wrap at 2^32, of which the ring's length is a divisor: differences are right throughout.
	head, pre, tail uint32
	wnd             uint32
}

// New makes an empty queue for capacity IDs at least (rounded up to a power of two) that looks wnd QPs ahead; 0: it never does.
func New[ID comparable](capacity, wnd int) (*Queue[ID], error) {
	if capacity < 1 || capacity > MaxCapacity {
		return nil, fmt.Errorf("%w, at most %d: got %d", ErrCapacity, MaxCapacity, capacity)
	}
	q := &Queue[ID]{ring: make([]ID, 1<<bits.Len(uint(capacity-1)))}
	return q, q.SetWindow(wnd)
}

// Push puts id at the back. It is false when the queue is full: an ID is in it twice.
func (q *Queue[ID]) Push(id ID) bool {
	if q.tail-q.head >= uint32(len(q.ring)) {
		return false
	}
	q.ring[q.tail&uint32(len(q.ring)-1)] = id
	q.tail++
	return true
}

// Pop takes the next ID to serve. An owner that serves a QP in several steps pops it, remembers it, and pushes it when its turn
// is over and it has more: the window counts the QPs after the one served.
func (q *Queue[ID]) Pop() (id ID, ok bool) {
	if q.head == q.tail {
		return id, false
	}
	at := &q.ring[q.head&uint32(len(q.ring)-1)]
	var none ID
	id, *at = *at, none
	if q.pre == q.head { // served before it was prefetched: too late for that
		q.pre++
	}
	q.head++
	return id, true
}

// Peek is what Pop would take.
func (q *Queue[ID]) Peek() (id ID, ok bool) {
	if q.head == q.tail {
		return id, false
	}
	return q.ring[q.head&uint32(len(q.ring)-1)], true
}

// Prefetch gives the next ID whose resources to fetch, each once a turn; false: all that are within the window were given. Call
// it after each Pop and Push, until it is false or as often as there is time.
func (q *Queue[ID]) Prefetch() (id ID, ok bool) {
	if q.pre == q.tail || q.pre-q.head >= q.wnd {
		return id, false
	}
	id = q.ring[q.pre&uint32(len(q.ring)-1)]
	q.pre++
	return id, true
}

// Hint tells whether a QP that is about to get work, and is not queued, should have its resources fetched at once: prefetching is
// on, and so few QPs wait that the queue would not look ahead far enough (software triggered prefetch, III.B). The QP is pushed
// when its work is there; Prefetch gives it then again, and finds everything fetched.
func (q *Queue[ID]) BelowWindow() bool { return q.tail-q.head < q.wnd }

// Len is the number of IDs that wait.
func (q *Queue[ID]) Len() int { return int(q.tail - q.head) }

// Ahead is the number of waiting IDs that Prefetch has given.
func (q *Queue[ID]) Prefetched() int { return int(q.pre - q.head) }

// Cap is the number of IDs that the queue holds at most.
func (q *Queue[ID]) Cap() int { return len(q.ring) }

// Window is how many QPs the queue looks ahead; 0: prefetching is off.
func (q *Queue[ID]) Window() int { return int(q.wnd) }

// SetWindow changes how many QPs the queue looks ahead. After a smaller one Prefetch is false until the turns have caught up.
func (q *Queue[ID]) SetWindow(wnd int) error {
	if wnd < 0 || wnd > MaxWindow {
		return fmt.Errorf("%w: got %d", ErrWindow, wnd)
	}
	q.wnd = uint32(wnd)
	return nil
}

// Window is the least window wnd for which the turns of the QPs in it last as long as fetching kinds resources one after the
// other, each taking delay (III.A):
//
//	chunk / BW * wnd >= kinds * delay
//
// chunk / BW is the time of one turn: bytes served in it over bytes a second, whatever limits them. The window should be the
// least that is enough, because what is fetched too early may be displaced before it is used. The result is within 0 and
// [MaxWindow]; it is 0 when an argument is not positive.
func Window(chunk int, bytesPerSecond float64, kinds int, delay time.Duration) int {
	if chunk <= 0 || kinds <= 0 || delay <= 0 || !(bytesPerSecond > 0) {
		return 0
	}
	turn := float64(chunk) / bytesPerSecond
	wnd := float64(kinds) * delay.Seconds() / turn
	// What is a whole number but for the last bit of a float64 stays that number.
	return int(math.Min(math.Ceil(wnd*(1-1e-12)), MaxWindow))
}
