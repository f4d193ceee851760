package loop

import (
	"testing"
	"time"

	"github.com/gorxe/gorxe/loopback"
)

// After a gap is filled, each step executes packets that were held, also if it receives frames.
func TestHeldPacketsDoNotWaitForFrames(t *testing.T) {
	a, b := newPair(t, pairConfig{selective: true})
	a.link.SetPlan(0, 1, loopback.Plan{Loss: 1})
	a.write(t, b, 8, 0)
	a.TryStep()
	a.link.SetPlan(0, 1, loopback.Plan{})
	for range 14 {
		a.write(t, b, memSize, 0)
		a.TryStep()
	}
	a.TryStep()
	start := b.qp.Activity()
	for range 15 {
		a.link.Advance(2 * time.Duration(coalesceTime))
		b.TryStep()
	}
	if got, want := b.eng.Counters().HeldPkts, uint64(14*memSize/1024); got != want {
		t.Fatalf("%d packets are held, want %d", got, want)
	}
	if got := b.qp.Activity(); got != start {
		t.Fatalf("%d packets were executed before the gap was filled", got-start)
	}
	driveUntil(t, a, b, b.eng.Filling)
	steps := 1
	for ; b.eng.Filling(); steps++ {
		a.write(t, b, 8, 0)
		a.TryStep()
		a.link.Advance(2 * time.Duration(coalesceTime))
		b.TryStep()
		if !b.received {
			t.Fatal("a step receives no frame: the test is too tame")
		}
	}
	if steps != 3 { // 2*256 packets in the first one
		t.Errorf("%d packets are executed in %d steps, want 3", 14*memSize/1024+1, steps)
	}
}
