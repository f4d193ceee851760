//go:build interop

package interop_test

import (
	"testing"
	"time"
)

// TestConnectionFaults makes, uses and ends connections on a link that loses, duplicates and
// reorders all packets, CM messages included. The kernel waits 4.3 s before it repeats those, and
// 2.1 s for an ACK.
func TestConnectionFaults(t *testing.T) {
	vs := few()
	if *coreFlag {
		vs = vs[:2]
	}
	for i, w := range badWires[:4] {
		for _, towardsGuest := range []bool{false, true} {
			where := " from the kernel"
			if towardsGuest {
				where = " to the kernel"
			}
			if *coreFlag && i != 1 {
				continue
			}
			lossy := func(t *testing.T, r *rig) {
				before := patience
				patience = lossyPatience << slow
				r.lossy = true
				t.Cleanup(func() { patience, r.lossy = before, false })
				r.fault(t, towardsGuest, w.rule)
			}
			play(t, "ucmatose, "+w.name+where, vs, func(t *testing.T, r *rig, v variant) {
				lossy(t, r)
				cmTools[0].run(t, r, v)
			})
			if *coreFlag {
				continue
			}
			s := rping(100, vs)
			s.time = 2 * lossyPatience
			stage(t, s.name+", "+w.name+where, vs, func(t *testing.T, r *rig, v variant) {
				lossy(t, r)
				s.run(t, r, v)
			})
		}
	}
}

const lossyPatience = 90 * time.Second
