//go:build linux

package xdp

import (
	"sync/atomic"

	"github.com/gorxe/gorxe/internal/fence"
	"golang.org/x/sys/unix"
)

// ring is one of the four rings that an AF_XDP socket shares with the kernel. It has one producer,
// one consumer, and free-running 32-bit indices.
//
// Memory order: a producer writes slots and then stores the producer index with release semantics;
// a consumer loads it with acquire semantics and then reads the slots. The consumer index returns
// slots in the same way. Stores use fence.Store, because an atomic store on amd64 would wait for
// the index's cache line, which the kernel has read on another core. A zero-copy driver consumes
// frames concurrently, so the producer index must be stored before the need-wakeup flag is read;
// publish then uses an atomic store.
//
// A ring belongs to the owner of its Port.
type ring[T any] struct {
	producer *atomic.Uint32
	consumer *atomic.Uint32
	flags    *atomic.Uint32
	slots    []T
	mask     uint32
	strict   bool   // needWakeup follows publish and must not overtake it (zero-copy)
	own      uint32 // our index; the slots before it are published or read
	seen     uint32 // the kernel's index when last read
	mem      []byte // the mapping
}

// needWakeup reports whether the kernel processes the ring only after a system call.
func (r *ring[T]) needWakeup() bool {
	return r.flags.Load()&unix.XDP_RING_NEED_WAKEUP != 0
}

// Methods of a producer: fill and transmit rings.

// space returns the number of free slots. It reads the kernel's index only if fewer than want are
// known to be free.
func (r *ring[T]) space(want uint32) uint32 {
	free := uint32(len(r.slots)) - (r.own - r.seen)
	if free < want {
		r.seen = r.consumer.Load()
		free = uint32(len(r.slots)) - (r.own - r.seen)
	}
	return free
}

// put writes the next slot, which must be free. publish makes it visible to the kernel.
func (r *ring[T]) put(v T) {
	r.slots[r.own&r.mask] = v
	r.own++
}

func (r *ring[T]) publish() {
	if r.strict {
		r.producer.Store(r.own)
		return
	}
	fence.Store(r.producer, r.own)
}

// queued returns the number of published slots that the kernel has not consumed.
func (r *ring[T]) queued() uint32 {
	r.seen = r.consumer.Load()
	return r.own - r.seen
}

// Methods of a consumer: receive and completion rings.

// ready returns the number of slots that can be read. It reads the kernel's index only if fewer
// than want are known to be ready.
func (r *ring[T]) ready(want uint32) uint32 {
	n := r.seen - r.own
	if n < want {
		r.seen = r.producer.Load()
		n = r.seen - r.own
	}
	return n
}

// at returns slot i of the ready ones.
func (r *ring[T]) at(i uint32) *T { return &r.slots[(r.own+i)&r.mask] }

// skip marks n slots as read. consumed tells the kernel.
func (r *ring[T]) skip(n uint32) { r.own += n }

func (r *ring[T]) consumed() { fence.Store(r.consumer, r.own) }
