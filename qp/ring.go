package qp

import "sync/atomic"

// cacheLine separates head and tail of a ring, so that producer and consumer do not share a line.
// amd64 prefetches lines in pairs.
const cacheLine = 128

// ring holds the two indices of a queue with a single producer and a single consumer. They only
// grow; masked, they are slots. The producer writes a slot and then publishes head. The consumer
// reads head, then the slot, and then frees it with tail. Loads are atomic and stores are releases
// (fence.Store), which orders the content of slots on every architecture. A store that is followed
// by a load of something else (such as a CQ's head and its armed field) is sequentially consistent.
//
// A QP has its own queues, whose indices are placed for the QP's layout instead.
type ring struct {
	head atomic.Uint32 // next slot to fill; written only by the producer
	_    [cacheLine - 4]byte
	tail atomic.Uint32 // next slot to take; written only by the consumer
	_    [cacheLine - 4]byte
}

// used returns the number of occupied slots. It is exact for the producer and the consumer, and a
// snapshot for others.
func (r *ring) used() uint32 { return r.head.Load() - r.tail.Load() }

// slots rounds a depth up to a power of two.
func slots(depth int) uint32 {
	n := uint32(1)
	for int(n) < depth {
		n <<= 1
	}
	return n
}
