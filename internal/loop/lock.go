package loop

import (
	"sync/atomic"

	"github.com/gorxe/gorxe/internal/fence"
)

// ownerLock is held by the owner of a loop. It has no queue: a goroutine that fails TryLock
// publishes a request that the owner reads after Unlock (see the package comment). That read must
// not overtake the unlocking store. Either the store is a locked instruction, or, where the kernel
// supports it, a plain store; then the requester calls fence.Heavy before TryLock. The owner
// unlocks a million times a second, requests are rare.
type ownerLock struct {
	v     atomic.Uint32
	light bool // see fence.Asymmetric
}

// TryLock takes the lock if it is free.
func (l *ownerLock) TryLock() bool { return l.v.Load() == 0 && l.v.CompareAndSwap(0, 1) }

// Unlock releases the lock before any later load of the owner, provided that requesters call order.
func (l *ownerLock) Unlock() {
	if l.light {
		fence.Store(&l.v, 0)
		return
	}
	l.v.Store(0)
}

// order is called between publishing a request and TryLock. If TryLock then fails, the owner sees
// the request after its Unlock.
func (l *ownerLock) order() {
	if l.light {
		fence.Heavy()
	}
}
