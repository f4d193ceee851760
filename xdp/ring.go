package xdp

import (
	"sync/atomic"

	"github.com/gorxe/gorxe/internal/fence"
	"golang.org/x/sys/unix"
)

// ring is one of the four rings that an AF_XDP socket shares with the kernel: single
// producer, single consumer, free-running 32-bit indices.
//
// Memory order: the side that writes slots stores the producer index
// afterwards, the side that reads slots loads it before; likewise the consumer index
// hands slots back. The kernel uses store-release and load-acquire on both, and so do we: loads are sync/atomic's, and
// stores fence.Store's, since an atomic store would wait on amd64 until the index's cache line has come from the core where
// the kernel last read it. With a driver that fetches frames by itself (zero-copy) the producer index has to be
// ordered before the look at the need-wakeup flag, too: there it is an atomic store. Slots themselves are plain memory.
//
// A ring has one owner thread, like the Port it belongs to.
type ring[T any] struct {
	producer *atomic.Uint32
	consumer *atomic.Uint32
	flags    *atomic.Uint32
	slots    []T
	mask     uint32
	strict   bool   // publish is followed by needWakeup, which must not overtake it
	own      uint32 // our index; slots up to it are ours to fill, or read already
	seen     uint32 // the kernel's index when last looked at
	mem      []byte // the mapping
}

// needWakeup says whether the kernel waits for a system call before it looks at
// the ring again.
func (r *ring[T]) needWakeup() bool {
	return r.flags.Load()&unix.XDP_RING_NEED_WAKEUP != 0
}

// --- as producer: fill and transmit rings

// space returns how many slots may be put, looking at the kernel's index only if fewer
// than want are known to be free.
func (r *ring[T]) space(want uint32) uint32 {
	free := uint32(len(r.slots)) - (r.own - r.seen)
	if free < want {
		r.seen = r.consumer.Load()
		free = uint32(len(r.slots)) - (r.own - r.seen)
	}
	return free
}

// put writes the next slot; space must have said yes. publish shows it to the kernel.
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

// queued returns how many published slots the kernel has not consumed.
func (r *ring[T]) queued() uint32 {
	r.seen = r.consumer.Load()
	return r.own - r.seen
}

// --- as consumer: receive and completion rings

// ready returns how many slots may be read, looking at the kernel's index only if fewer
// than want are known.
func (r *ring[T]) ready(want uint32) uint32 {
	n := r.seen - r.own
	if n < want {
		r.seen = r.producer.Load()
		n = r.seen - r.own
	}
	return n
}

// at returns slot i of those that are ready.
func (r *ring[T]) at(i uint32) *T { return &r.slots[(r.own+i)&r.mask] }

// skip counts n slots as read. consumed tells the kernel.
func (r *ring[T]) skip(n uint32) { r.own += n }

func (r *ring[T]) consumed() { fence.Store(r.consumer, r.own) }
