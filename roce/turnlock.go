package roce

import (
	"sync/atomic"

	"github.com/gorxe/gorxe/internal/fence"
)

// turnLock is who owns a shard. Nobody queues for it: who does not get it leaves word for the owner (see drive.go), who looks for
// that after letting go. That look must not overtake the letting go. So it is a locked instruction, or, where the kernel
// helps, a plain store, and who leaves word calls fence.Heavy before it tries the lock: the owner comes round a
// million times a second, and they do not.
type turnLock struct {
	v     atomic.Uint32
	light bool // see fence.Asymmetric
}

// asymmetric is replaced by tests, which go the way of kernels without membarrier, too.
var asymmetric = fence.Asymmetric

// TryLock takes the lock if it is free.
func (l *turnLock) TryLock() bool { return l.v.Load() == 0 && l.v.CompareAndSwap(0, 1) }

// Unlock lets go, before any load of the owner's that follows; but see order.
func (l *turnLock) Unlock() {
	if l.light {
		fence.Store(&l.v, 0)
		return
	}
	l.v.Store(0)
}

// order comes between leaving word for the owner and TryLock: if that fails, the owner finds the word after its Unlock.
func (l *turnLock) order() {
	if l.light {
		fence.Heavy()
	}
}
