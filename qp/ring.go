package qp

import "sync/atomic"

// cacheLine keeps the two ends of a ring apart, so that producer and consumer do not fight for a
// line (amd64 prefetches lines in pairs).
const cacheLine = 128

// The two indices of a single producer, single consumer queue, head and tail, count up for ever;
// masked they are slots. The producer writes a slot, then publishes head; the consumer reads head,
// then the slot, then frees it by tail. Go's atomics are sequentially consistent, so the slot's
// content is ordered by them on every architecture.
//
// ring keeps them apart; a QP's own queues, of which there are many, lay theirs out with the QP's
// other fields instead (see QP).
type ring struct {
	head atomic.Uint32 // next slot to fill; written by the producer only
	_    [cacheLine - 4]byte
	tail atomic.Uint32 // next slot to take; written by the consumer only
	_    [cacheLine - 4]byte
}

// used is how many slots are taken; exact for either end, a snapshot for others.
func (r *ring) used() uint32 { return r.head.Load() - r.tail.Load() }

// slots rounds a depth up to a power of two.
func slots(depth int) uint32 {
	n := uint32(1)
	for int(n) < depth {
		n <<= 1
	}
	return n
}
