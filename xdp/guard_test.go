//go:build linux

package xdp

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/gorxe/gorxe/internal/fence/litmus"
)

// The owner is never inside a call after Close has waited for it, whether it entered with or
// without Hold. With plain stores, this fails on amd64.
func TestCloseWaitsForOwner(t *testing.T) {
	for _, hold := range []bool{true, false} {
		t.Run(fmt.Sprintf("hold=%v", hold),
			func(t *testing.T) { testCloseWaits(t, new(Port), hold) })
	}
}

func testCloseWaits(t *testing.T, p *Port, hold bool) {
	var unmapped atomic.Bool
	closer := func(uint32) {
		p.closed.Store(true)
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
