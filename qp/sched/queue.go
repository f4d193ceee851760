package sched

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"time"
)

// Limits of a queue.
const (
	MaxCapacity = 1 << 24 // IDs: there are no more QPNs (IBA 9.2.5)
	// QPs: what is prefetched earlier has left the cache before its QP is served
	MaxWindow = 4096
)

// Errors of New and SetWindow.
var (
	ErrCapacity = errors.New("sched: capacity out of range: choose at least the number of QPs")
	ErrWindow   = errors.New("sched: prefetch window out of range: choose 0 (off) to 4096 QPs")
)

// Queue is the scheduling queue and, as a second cursor over the same ring, the prefetch queue. ID
// identifies a QP.
//
// An ID may be in the queue only once. The owner keeps a bit per ID: it sets the bit when it pushes
// the ID and clears it when it pops or removes the ID. Remove takes time in proportion to Len. So
// if a QP is destroyed while it is queued, its ID stays and the owner skips it at Prefetch and Pop.
// A new QP with the same ID inherits the bit and the slot.
type Queue[ID comparable] struct {
	ring []ID
	// The cursors wrap at 2^32, a multiple of the ring's length, so differences are always right.
	head, pre, tail uint32
	wnd             uint32
}

// New returns an empty queue for at least capacity IDs, rounded up to a power of two, with a
// prefetch window of wnd QPs. 0 turns prefetching off.
func New[ID comparable](capacity, wnd int) (*Queue[ID], error) {
	if capacity < 1 || capacity > MaxCapacity {
		return nil, fmt.Errorf("%w, at most %d: got %d", ErrCapacity, MaxCapacity, capacity)
	}
	q := &Queue[ID]{ring: make([]ID, 1<<bits.Len(uint(capacity-1)))}
	return q, q.SetWindow(wnd)
}

// Push appends id. It returns false if the queue is full, which means that some ID is in it twice.
func (q *Queue[ID]) Push(id ID) bool {
	if q.tail-q.head >= uint32(len(q.ring)) {
		return false
	}
	q.ring[q.tail&uint32(len(q.ring)-1)] = id
	q.tail++
	return true
}

// Pop removes the next ID to serve. An owner that serves a QP in several steps pops its ID, and
// pushes it again when it has used its quantum and has more to send. The window counts the QPs
// after the one being served.
func (q *Queue[ID]) Pop() (id ID, ok bool) {
	if q.head == q.tail {
		return id, false
	}
	at := &q.ring[q.head&uint32(len(q.ring)-1)]
	var none ID
	id, *at = *at, none
	if q.pre == q.head { // popped before it was prefetched
		q.pre++
	}
	q.head++
	return id, true
}

// Remove removes id from wherever it is in the queue, and reports whether it was there. It takes
// time in proportion to Len.
func (q *Queue[ID]) Remove(id ID) bool {
	mask := uint32(len(q.ring) - 1)
	for i := q.head; i != q.tail; i++ {
		if q.ring[i&mask] != id {
			continue
		}
		if q.pre-q.head > i-q.head {
			q.pre--
		}
		for q.tail--; i != q.tail; i++ {
			q.ring[i&mask] = q.ring[(i+1)&mask]
		}
		var none ID
		q.ring[q.tail&mask] = none
		return true
	}
	return false
}

// Peek returns what Pop would remove.
func (q *Queue[ID]) Peek() (id ID, ok bool) {
	if q.head == q.tail {
		return id, false
	}
	return q.ring[q.head&uint32(len(q.ring)-1)], true
}

// Prefetch returns the next ID whose resources to prefetch, once per Push. It returns false if all
// IDs within the window were returned. Call it after each Push and Pop, until it returns false or
// as often as there is time.
func (q *Queue[ID]) Prefetch() (id ID, ok bool) {
	if q.pre == q.tail || q.pre-q.head >= q.wnd {
		return id, false
	}
	id = q.ring[q.pre&uint32(len(q.ring)-1)]
	q.pre++
	return id, true
}

// BelowWindow reports whether a QP that is about to get work and is not queued should be prefetched
// at once: prefetching is on, and fewer QPs wait than the window holds (software-triggered
// prefetch, III.B). When the QP is pushed, Prefetch returns it again.
func (q *Queue[ID]) BelowWindow() bool { return q.tail-q.head < q.wnd }

// Len returns the number of queued IDs.
func (q *Queue[ID]) Len() int { return int(q.tail - q.head) }

// Prefetched returns the number of queued IDs that Prefetch has returned.
func (q *Queue[ID]) Prefetched() int { return int(q.pre - q.head) }

// Cap returns the capacity in IDs.
func (q *Queue[ID]) Cap() int { return len(q.ring) }

// Window returns the prefetch window in QPs; 0: prefetching is off.
func (q *Queue[ID]) Window() int { return int(q.wnd) }

// SetWindow changes the prefetch window. After it shrinks, Prefetch returns false until enough IDs
// have been popped.
func (q *Queue[ID]) SetWindow(wnd int) error {
	if wnd < 0 || wnd > MaxWindow {
		return fmt.Errorf("%w: got %d", ErrWindow, wnd)
	}
	q.wnd = uint32(wnd)
	return nil
}

// Window returns the smallest window wnd for which serving the QPs in it takes as long as fetching
// kinds resources one after the other, each of which takes delay (III.A):
//
//	chunk / BW * wnd >= kinds * delay
//
// chunk / BW is the time to serve one QP: the bytes sent divided by the bandwidth, whatever limits
// it. The window should not be larger than needed, because what is prefetched too early may be
// evicted before it is used. The result is between 0 and [MaxWindow]. It is 0 if an argument is not
// positive.
func Window(chunk int, bytesPerSecond float64, kinds int, delay time.Duration) int {
	if chunk <= 0 || kinds <= 0 || delay <= 0 || !(bytesPerSecond > 0) {
		return 0
	}
	turn := float64(chunk) / bytesPerSecond
	wnd := float64(kinds) * delay.Seconds() / turn
	// Ignore a rounding error in the last bit of an integer.
	return int(math.Min(math.Ceil(wnd*(1-1e-12)), MaxWindow))
}
