// Package litmus runs litmus tests of memory ordering: two goroutines race in many rounds, and each
// round's outcome is checked. Only tests import it.
package litmus

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const (
	// limit is how long Run continues after MinRounds rounds.
	limit = 2 * time.Second
	// patience is how long Run waits for MinRounds rounds on a busy machine.
	patience = time.Minute
	// maxOffset bounds the offset between the starts of the two sides, in loop iterations.
	maxOffset = 256
	// stop is the round that ends the second goroutine.
	stop = 1<<32 - 1
)

// MinRounds is the number of rounds that every test must reach. Without its barriers, an ordering
// bug shows up within a few thousand rounds on amd64.
const MinRounds = 1000

// Run calls a and b concurrently in rounds numbered from 1, with a varying offset between the two,
// and calls check after each round. a and check run on the caller's goroutine. Run returns after
// the given number of rounds, earlier if time runs out after MinRounds rounds, or if the test has
// failed. It fails the test if it does not reach MinRounds rounds.
func Run(t testing.TB, rounds uint32, a, b, check func(round uint32)) {
	t.Helper()
	var started, done atomic.Uint32
	var other sync.WaitGroup
	other.Go(func() {
		for i := uint32(1); await(&started, func(v uint32) bool { return v >= i }) &&
			started.Load() != stop; i++ {
			b(i)
			done.Store(i)
		}
	})
	defer func() {
		started.Store(stop)
		other.Wait()
	}()
	start := time.Now()
	for i := uint32(1); i <= rounds && !t.Failed(); i++ {
		if i > MinRounds && time.Since(start) > limit {
			t.Logf("stopped after %d of %d rounds", i-1, rounds)
			return
		}
		started.Store(i)
		for range i % maxOffset {
			_ = started.Load()
		}
		a(i)
		if !await(&done, func(v uint32) bool { return v == i }) {
			t.Fatalf("round %d did not end within %v", i, patience)
		}
		if i <= MinRounds && time.Since(start) > patience {
			t.Fatalf("only %d rounds in %v, want at least %d: the machine is too busy", i, patience,
				MinRounds)
		}
		check(i)
	}
}

// await spins until ok accepts the value of v. It returns false if patience runs out.
func await(v *atomic.Uint32, ok func(uint32) bool) bool {
	end := time.Now().Add(patience)
	for n := 1; !ok(v.Load()); n++ {
		if n%1000 == 0 {
			if time.Now().After(end) {
				return false
			}
			runtime.Gosched()
		}
	}
	return true
}
