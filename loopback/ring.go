package loopback

import "sync/atomic"

// cacheLine separates fields that different goroutines write.
const cacheLine = 64

// ring is a single-producer single-consumer queue of fixed size. The producer stages entries and
// then publishes them together by storing tail. The consumer loads tail, reads the entries, and
// then frees them by storing head.
type ring[T any] struct {
	slots []T
	mask  uint64

	_    [cacheLine]byte
	head atomic.Uint64 // consumer
	read uint64        // consumer: entries taken; the next value of head
	seen uint64        // consumer: tail when last read

	_      [cacheLine]byte
	tail   atomic.Uint64 // producer
	staged uint64        // producer: entries written; the next value of tail
	freed  uint64        // producer: head when last read
	_      [cacheLine]byte
}

func (r *ring[T]) init(capacity int) {
	n := 1
	for n < capacity {
		n <<= 1
	}
	r.slots, r.mask = make([]T, n), uint64(n-1)
}

// stage writes an entry that the next publish makes visible. It returns false if the ring is full.
func (r *ring[T]) stage(v T) bool {
	if r.staged-r.freed == uint64(len(r.slots)) {
		if r.freed = r.head.Load(); r.staged-r.freed == uint64(len(r.slots)) {
			return false
		}
	}
	r.slots[r.staged&r.mask] = v
	r.staged++
	return true
}

// publish makes staged entries visible to the consumer. It returns false if there are none.
func (r *ring[T]) publish() bool {
	if r.tail.Load() == r.staged {
		return false
	}
	r.tail.Store(r.staged)
	return true
}

// take reads the next entry. Call done afterwards to free its slot.
func (r *ring[T]) take() (v T, ok bool) {
	if r.read == r.seen {
		if r.seen = r.tail.Load(); r.read == r.seen {
			return v, false
		}
	}
	v = r.slots[r.read&r.mask]
	r.read++
	return v, true
}

// done returns the slots of taken entries to the producer.
func (r *ring[T]) done() {
	if r.head.Load() != r.read {
		r.head.Store(r.read)
	}
}

// ready reports whether take would succeed. Only the consumer may call it.
func (r *ring[T]) ready() bool { return r.read != r.seen || r.tail.Load() != r.read }
