//go:build linux

package xdp

import (
	"sync/atomic"
	"testing"
)

func fakeRing[T any](size int) ring[T] {
	return ring[T]{producer: new(atomic.Uint32), consumer: new(atomic.Uint32),
		flags: new(atomic.Uint32), slots: make([]T, size), mask: uint32(size - 1)}
}

// fakeQueue is a queue with rings in ordinary memory. The test acts as the kernel.
func fakeQueue(buffers int, adapt bool) *queue {
	q := &queue{shift: 12, rxCount: uint32(buffers)}
	q.fill = fakeRing[uint64](buffers)
	q.initRefill(adapt)
	return q
}

// A receiver that keeps up uses few buffers again and again. If frames accumulate, the kernel gets
// more, and after a calm time fewer again.
func TestRefillFollowsTheLoad(t *testing.T) {
	const all = 2048
	q := fakeQueue(all, true)
	used := map[uint64]bool{}
	// deliver adds n frames, lets the receiver take them at once, and returns their buffers.
	deliver := func(n int) {
		t.Helper()
		var got []uint32
		for range n {
			if q.fill.own == q.fill.consumer.Load() {
				t.Fatalf("the kernel has no buffer left, want %d", q.target)
			}
			at := q.fill.consumer.Add(1) - 1
			addr := q.fill.slots[at&q.fill.mask]
			used[addr] = true
			got = append(got, uint32(addr>>q.shift))
		}
		q.taken(uint32(n), uint32(n))
		for _, i := range got {
			q.recycle(i)
		}
		q.topUp()
		if have := int(q.posted) + len(q.spare); have != all {
			t.Fatalf("%d buffers exist, want %d", have, all)
		}
	}
	for range 10_000 {
		deliver(8)
	}
	if q.target != minFill || len(used) > minFill {
		t.Errorf("receiver keeps up: the kernel has %d buffers and used %d, want %d for both",
			q.target, len(used), minFill)
	}
	for range 10 {
		deliver(int(q.target)*3/4 - 1)
	}
	if q.target != all || q.posted != all {
		t.Errorf("frames accumulate: the kernel has %d of %d buffers, want all %d", q.posted,
			q.target, all)
	}
	for range 4 * calmFrames / 16 {
		deliver(16)
	}
	if q.target != minFill || q.posted > 2*minFill {
		t.Errorf("after a calm time: the kernel has %d of %d buffers, want %d", q.posted, q.target,
			minFill)
	}
}

// With Options.Chunks set, the kernel always has all buffers.
func TestRefillFixed(t *testing.T) {
	q := fakeQueue(1024, false)
	for range 3 * calmFrames / 8 {
		q.taken(8, 8)
		for i := range uint32(8) {
			q.recycle(i)
		}
		q.fill.consumer.Add(8)
		q.topUp()
		if q.posted != 1024 {
			t.Fatalf("the kernel has %d buffers, want all 1024", q.posted)
		}
	}
}
