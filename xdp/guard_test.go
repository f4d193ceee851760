package xdp

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/gorxe/gorxe/internal/fence"
	"github.com/gorxe/gorxe/internal/fence/litmus"
)

// The owner is never inside a call after Close has waited for it, whether it entered with or without
// Hold. Without the barrier in Close, this fails on amd64.
func TestCloseWaitsForOwner(t *testing.T) {
	for _, asymmetric := range []bool{true, false} {
		for _, hold := range []bool{true, false} {
			t.Run(fmt.Sprintf("asymmetric=%v/hold=%v", asymmetric, hold), func(t *testing.T) {
				if asymmetric && !fence.Asymmetric() {
					t.Skip("the kernel does not support membarrier")
				}
				testCloseWaits(t, &Port{asymmetric: asymmetric}, hold)
			})
		}
	}
}

func testCloseWaits(t *testing.T, p *Port, hold bool) {
	var unmapped atomic.Bool
	closer := func(uint32) {
		p.shut()
		p.awaitOwner()
		unmapped.Store(true)
	}
	owner := func(i uint32) {
		if hold {
			p.Hold()
			defer p.Unhold()
		}
		if !p.enter() {
			return
		}
		defer p.leave()
		for range 200 { // as long as a call may take
			if unmapped.Load() {
				t.Errorf("round %d: the owner uses memory after Close has unmapped it", i)
				return
			}
		}
	}
	litmus.Run(t, 5_000, closer, owner, func(uint32) {
		unmapped.Store(false)
		p.closed.Store(false)
	})
}
