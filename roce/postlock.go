package roce

import (
	"runtime"
	"sync/atomic"
	"time"

	"github.com/gorxe/gorxe/internal/fence"
)

// postLock lets one poster in at a time. It is held for some ten nanoseconds a work request, mostly by the only poster that there is, so letting go
// is a plain store: a sync.Mutex's is a locked instruction, to see who sleeps in it. Here who comes too late looks again, and later sleeps for a
// moment at a time: only QP.Close holds the lock for longer.
type postLock struct{ v *atomic.Uint32 }

// How a goroutine waits for a postLock: it yields a few times, then it sleeps between attempts.
const (
	lockYields = 100
	lockPause  = 10 * time.Microsecond
)

// Lock takes the lock.
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

// Unlock lets go, after everything that was done under the lock.
func (l postLock) Unlock() { fence.Store(l.v, 0) }
