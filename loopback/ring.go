package loopback

import "sync/atomic"

// cacheLine keeps what different threads write apart.
const cacheLine = 64

// ring is a single-producer single-consumer queue of fixed size. The producer
// stages entries and publishes them together: entries first, then tail
// (release); the consumer loads tail (acquire), reads, then frees by head.
type ring[T any] struct {
	slots []T
	mask  uint64

	_    [cacheLine]byte
	head atomic.Uint64 // consumer
	read uint64        // consumer: entries taken, head when published
	seen uint64        // consumer: tail when last looked at

	_      [cacheLine]byte
	tail   atomic.Uint64 // producer
	staged uint64        // producer: entries written, tail when published
	freed  uint64        // producer: head when last looked at
	_      [cacheLine]byte
}

func (r *ring[T]) init(capacity int) {
	n := 1
	for n < capacity {
		n <<= 1
	}
	r.slots, r.mask = make([]T, n), uint64(n-1)
}

// stage writes an entry for the next publish; false if the ring is full.
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

// publish shows staged entries to the consumer; false if there were none.
func (r *ring[T]) publish() bool {
	if r.tail.Load() == r.staged {
		return false
	}
	r.tail.Store(r.staged)
	return true
}

// take reads the next entry; done must follow before the producer runs dry.
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

// done gives the places of taken entries back to the producer.
func (r *ring[T]) done() {
	if r.head.Load() != r.read {
		r.head.Store(r.read)
	}
}

// ready reports whether take would succeed. Consumer only.
func (r *ring[T]) ready() bool { return r.read != r.seen || r.tail.Load() != r.read }
