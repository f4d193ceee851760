package roce

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/fence"
)

// Who leaves word and does not get the lock is heard: the owner, who lets go just then, looks afterwards. Without order this fails
// within some thousand rounds on amd64.
func TestTurnLockHearsWord(t *testing.T) {
	const rounds = 20_000
	for _, light := range []bool{true, false} {
		if light && !fence.Asymmetric() {
			continue // this kernel has no membarrier
		}
		l := turnLock{light: light}
		var word atomic.Bool
		var turn, done atomic.Uint32
		var inside atomic.Int32
		hear := func() { // one is in it at a time
			if n := inside.Add(1); n != 1 {
				t.Errorf("%d own the lock", n)
			}
			word.Store(false)
			inside.Add(-1)
		}
		end := time.Now().Add(2 * time.Second)
		wait := func(v *atomic.Uint32, want uint32) bool {
			for n := 1; v.Load() != want; n++ {
				if n%1000 == 0 {
					if time.Now().After(end) {
						return false
					}
					runtime.Gosched()
				}
			}
			return true
		}
		var owner sync.WaitGroup
		owner.Go(func() {
			for i := uint32(1); i <= rounds && wait(&turn, i); i++ {
				for !l.TryLock() { // the other has it for a moment
				}
				l.Unlock()
				for word.Load() && l.TryLock() {
					hear()
					l.Unlock()
				}
				done.Store(i)
			}
		})
		for i := uint32(1); i <= rounds; i++ {
			turn.Store(i)
			for range i % 64 { // meet at every distance
				_ = turn.Load()
			}
			word.Store(true)
			l.order()
			if l.TryLock() {
				hear()
				l.Unlock()
			}
			if !wait(&done, i) {
				t.Logf("light %v: only %d rounds: the machine is busy", light, i)
				break
			}
			if word.Load() {
				t.Fatalf("light %v, round %d: nobody has heard", light, i)
			}
		}
		turn.Store(0)
		owner.Wait()
	}
}
