package loop

import (
	"testing"

	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/loopback"
)

// holding is a Port that counts calls of Hold.
type holding struct {
	driver.Port
	holds, held int
}

func (h *holding) Hold()   { h.holds++; h.held++ }
func (h *holding) Unhold() { h.held-- }

// The loop holds the inner port of a wrapper during a step.
func TestHoldsWrappedPort(t *testing.T) {
	var h [2]*holding
	a, b := newPair(t, pairConfig{wrap: func(i int, p driver.Port) driver.Port {
		h[i] = &holding{Port: p}
		return loopback.Inject(h[i], 1, loopback.Plan{})
	}})
	a.write(t, b, 100, 0)
	a.TryStep()
	b.TryStep()
	for i, h := range h {
		if h.holds == 0 || h.held != 0 {
			t.Errorf("port %d: %d calls of Hold, %d without Unhold", i, h.holds, h.held)
		}
	}
}
