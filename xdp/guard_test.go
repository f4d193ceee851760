package xdp

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/fence"
)

// The owner is never inside once Close has waited for it, whether it entered by itself or by Hold. Without Close's barrier this fails
// within some thousand rounds on amd64.
func TestNobodyInsideAfterClose(t *testing.T) {
	const rounds = 5_000
	for _, light := range []bool{true, false} {
		for _, hold := range []bool{true, false} {
			t.Run(fmt.Sprintf("light=%v/hold=%v", light, hold), func(t *testing.T) {
				if light && !fence.Asymmetric() {
					t.Skip("this kernel has no membarrier")
				}
				p := &Port{light: light}
				var torn atomic.Bool
				var turn, done atomic.Uint32
				end := time.Now().Add(time.Second)
				wait := func(v *atomic.Uint32, want uint32) bool {
					for n := 1; v.Load() != want; n++ {
						if n%1000 == 0 {
							if t.Failed() || time.Now().After(end) {
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
						if hold {
							p.Hold()
						}
						if p.enter() {
							for range 200 { // as long as a call may take
								if torn.Load() {
									t.Errorf("round %d: the owner uses what is gone", i)
									break
								}
							}
							p.leave()
						}
						if hold {
							p.Unhold()
						}
						done.Store(i)
					}
				})
				for i := uint32(1); i <= rounds && !t.Failed(); i++ {
					turn.Store(i)
					for range i % 256 { // meet at every distance
						_ = turn.Load()
					}
					p.refuse()
					p.awaitOwner()
					torn.Store(true)
					if !wait(&done, i) {
						t.Logf("only %d rounds: the machine is busy", i)
						break
					}
					torn.Store(false)
					p.closed.Store(false)
				}
				turn.Store(0)
				owner.Wait()
			})
		}
	}
}
