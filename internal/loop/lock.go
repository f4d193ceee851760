package loop

import "sync/atomic"

// ownerLock is held by the owner of a loop. It has no queue: a goroutine that fails TryLock has
// published a request before, which the owner reads after Unlock (see the package comment).
type ownerLock struct{ v atomic.Uint32 }

// TryLock takes the lock if it is free.
func (l *ownerLock) TryLock() bool { return l.v.Load() == 0 && l.v.CompareAndSwap(0, 1) }

// Unlock releases the lock.
func (l *ownerLock) Unlock() { l.v.Store(0) }
