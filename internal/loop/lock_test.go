package loop

import (
	"sync/atomic"
	"testing"

	"github.com/gorxe/gorxe/internal/fence/litmus"
	"github.com/gorxe/gorxe/qp"
)

const litmusRounds = 20_000

// The owner sees, after its Unlock, a request that was published before a failed TryLock. With a
// plain store in Unlock this fails within some thousand rounds on amd64.
func TestOwnerLockSeesRequests(t *testing.T) {
	var l ownerLock
	var request atomic.Bool
	var inside atomic.Int32
	serve := func() {
		if n := inside.Add(1); n != 1 {
			t.Errorf("%d owners at the same time, want 1", n)
		}
		request.Store(false)
		inside.Add(-1)
	}
	litmus.Run(t, litmusRounds, func(uint32) {
		request.Store(true)
		if l.TryLock() {
			serve()
			l.Unlock()
		}
	}, func(uint32) {
		for !l.TryLock() { // the requester holds it for a moment only
		}
		l.Unlock()
		for request.Load() && l.TryLock() {
			serve()
			l.Unlock()
		}
	}, func(round uint32) {
		if request.Load() {
			t.Errorf("round %d: the owner did not see the request", round)
		}
	})
}

// A command that comes at the end of a step is run, by its sender or by the owner that unlocks,
// even if no goroutine drives the loop afterwards.
func TestDoDuringStep(t *testing.T) {
	l := newLoop(t, Config{Manual: true})
	ran := false
	litmus.Run(t, litmusRounds, func(uint32) {
		l.Do(func(qp.Time) { ran = true })
	}, func(uint32) {
		l.TryStep()
	}, func(round uint32) {
		if !ran {
			t.Errorf("round %d: the command did not run", round)
		}
		ran = false
	})
}
