package roce

import (
	"runtime"
	"sync/atomic"
	"time"

	"github.com/gorxe/gorxe/internal/fence"
)

// postLock is a spin lock that serializes posters. It is held for about ten nanoseconds per work
// request, mostly without contention. Unlock is a plain store, which is cheaper than the atomic
// instruction of sync.Mutex. Waiters yield, and later sleep briefly: only QP.Close and a change
// to StateReset hold the lock for long.
type postLock struct{ v *atomic.Uint32 }

// How a goroutine waits for a postLock: it yields a few times, then it sleeps between attempts.
const (
	lockYields = 100
	lockPause  = 10 * time.Microsecond
)

// Lock acquires the lock.
func (l postLock) Lock() {
	if !l.v.CompareAndSwap(0, 1) {
		l.wait()
	}
}

func (l postLock) wait() {
	for tries := 0; l.v.Load() != 0 || !l.v.CompareAndSwap(0, 1); tries++ {
		if tries < lockYields {
			runtime.Gosched()
		} else {
			time.Sleep(lockPause)
		}
	}
}

// Unlock releases the lock, with release ordering.
func (l postLock) Unlock() { fence.Store(l.v, 0) }
