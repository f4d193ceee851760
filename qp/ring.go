package qp

import "sync/atomic"

// cacheLine keeps the two ends of a ring apart, so that producer and consumer do not fight for a
// line (amd64 prefetches lines in pairs).
const cacheLine = 128

// The two indices of a single producer, single consumer queue, head and tail, count up for ever;
// masked they are slots. The producer writes a slot, then publishes head; the consumer reads head,
// then the slot, then frees it by tail. Loads are atomic and stores release (fence.Store), which
// orders the slot's content on every architecture; where a look at something else follows (a CQ's
// head and who is armed), the store is sequentially consistent.
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
