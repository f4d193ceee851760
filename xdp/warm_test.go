package xdp

import (
	"sync/atomic"
	"testing"
)

func fakeRing[T any](size int) ring[T] {
	return ring[T]{producer: new(atomic.Uint32), consumer: new(atomic.Uint32), flags: new(atomic.Uint32), slots: make([]T, size), mask: uint32(size - 1)}
}

// fakeQueue is a queue whose rings are ordinary memory: the test plays the kernel.
func fakeQueue(buffers int, adapt bool) *queue {
	q := &queue{shift: 12, rxCount: uint32(buffers)}
	q.fill = fakeRing[uint64](buffers)
	q.initRefill(adapt)
	return q
}

// Few buffers serve a receiver that keeps up, the same ones again and again; a pile of frames
// brings more, up to all; a long calm takes them back. None is ever lost.
func TestRefillFollowsTheLoad(t *testing.T) {
	const all = 2048
	q := fakeQueue(all, true)
	used := map[uint64]bool{}
	// turn lets n frames arrive, all of them waiting when the receiver looks, and gives their buffers back.
	turn := func(n int) {
		t.Helper()
		var got []uint32
		for range n {
			if q.fill.own == q.fill.consumer.Load() {
				t.Fatalf("the kernel has no buffer left, of %d it should have", q.want)
			}
			at := q.fill.consumer.Add(1) - 1
			addr := q.fill.slots[at&q.fill.mask]
			used[addr] = true
			got = append(got, uint32(addr>>q.shift))
		}
		q.taken(uint32(n), uint32(n))
		for _, i := range got {
			q.giveBack(i)
		}
		q.topUp()
		if have := int(q.posted) + len(q.spare); have != all {
			t.Fatalf("%d buffers, there were %d", have, all)
		}
	}
	for range 10_000 {
		turn(8)
	}
	if q.want != minFill || len(used) > startFill {
		t.Errorf("a receiver that keeps up: the kernel has %d buffers and used %d, want %d and at most %d", q.want, len(used), minFill, startFill)
	}
	for range 10 {
		turn(int(q.want)*3/4 - 1)
	}
	if q.want != all || q.posted != all {
		t.Errorf("frames pile up: the kernel has %d of %d buffers, want all %d", q.posted, q.want, all)
	}
	for range 4 * calmFrames / 16 {
		turn(16)
	}
	if q.want != minFill || q.posted > 2*minFill {
		t.Errorf("calm again: the kernel has %d of %d buffers, want %d", q.posted, q.want, minFill)
	}
}

// With Options.Chunks given the kernel has all buffers, whatever happens.
func TestRefillFixed(t *testing.T) {
	q := fakeQueue(1024, false)
	for range 3 * calmFrames / 8 {
		q.taken(8, 8)
		for i := range uint32(8) {
			q.giveBack(i)
		}
		q.fill.consumer.Add(8)
		q.topUp()
		if q.posted != 1024 {
			t.Fatalf("the kernel has %d buffers, want all 1024", q.posted)
		}
	}
}
