//go:build linux

package xdp

import (
	"errors"
	"math"
	"runtime"
	"sync/atomic"
	"testing"
)

// twoSides returns the producer's and the consumer's view of a ring, with both indices at start.
func twoSides(size int, start uint32) (producer, consumer *ring[uint64]) {
	var p, c, f atomic.Uint32
	p.Store(start)
	c.Store(start)
	slots := make([]uint64, size)
	side := func() *ring[uint64] {
		return &ring[uint64]{producer: &p, consumer: &c, flags: &f, slots: slots,
			mask: uint32(size - 1), own: start, seen: start}
	}
	return side(), side()
}

// The indices are free-running and wrap at 2^32. A ring holds exactly its size.
func TestRingWraps(t *testing.T) {
	const size = 8
	out, in := twoSides(size, math.MaxUint32-20)
	next, want := uint64(0), uint64(0)
	for round := range 20 {
		n := out.space(size)
		if n != size {
			t.Fatalf("round %d: space() = %d", round, n)
		}
		for range n {
			out.put(next)
			next++
		}
		if in.ready(1) != 0 {
			t.Fatal("slots are readable before publish")
		}
		out.publish()
		if out.space(1) != 0 || out.queued() != size {
			t.Fatalf("round %d: full ring: space() = %d, queued() = %d", round, out.space(1),
				out.queued())
		}
		k := in.ready(1)
		if k != size {
			t.Fatalf("round %d: ready() = %d", round, k)
		}
		for i := range k {
			if *in.at(i) != want {
				t.Fatalf("slot = %d, want %d", *in.at(i), want)
			}
			want++
		}
		in.skip(k)
		in.consumed()
	}
}

// One thread reads in order what another one writes. Under the race detector this checks the memory
// order.
func TestRingBetweenThreads(t *testing.T) {
	const n = 20000
	out, in := twoSides(64, 0)
	go func() {
		for i := uint64(0); i < n; {
			k := out.space(1)
			for ; k > 0 && i < n; k-- {
				out.put(i)
				i++
			}
			out.publish()
			runtime.Gosched()
		}
	}()
	for want := uint64(0); want < n; {
		k := in.ready(1)
		for i := range k {
			if *in.at(i) != want {
				t.Fatalf("slot = %d, want %d", *in.at(i), want)
			}
			want++
		}
		in.skip(k)
		in.consumed()
		runtime.Gosched()
	}
}

func TestOptions(t *testing.T) {
	yes := true
	for _, o := range []Options{
		{Mode: 9}, {Queues: -1}, {Queues: 10000}, {RingSize: 100}, {RingSize: 16},
		{RingSize: 1 << 20}, {Chunks: -1},
		{BusyPoll: -1}, {Mode: Generic, ZeroCopy: &yes},
	} {
		if _, err := Open("lo", o); !errors.Is(err, ErrOptions) {
			t.Errorf("check of %+v: %v", o, err)
		}
	}
	for _, m := range []Mode{Auto, Native, Generic} {
		if got, err := ParseMode(m.String()); err != nil || got != m {
			t.Errorf("ParseMode(%v) = %v, %v", m, got, err)
		}
	}
	if _, err := ParseMode("fast"); !errors.Is(err, ErrOptions) {
		t.Errorf("ParseMode(fast): %v", err)
	}
}

// With many queues the default ring size shrinks, so that the packet memory is bounded.
func TestDefaultSizesAreBounded(t *testing.T) {
	for queues := 1; queues <= maxQueues; queues++ {
		var o Options
		if err := o.sizes(queues); err != nil {
			t.Fatal(err)
		}
		if total := (queues + 1) * o.Chunks * 2 * chunkSize; total > maxUMEM ||
			o.RingSize < minRing {
			t.Fatalf("%d queues: ring size %d, %d MiB", queues, o.RingSize, total>>20)
		}
	}
	o := Options{RingSize: 64, Chunks: 128}
	if err := o.sizes(1); !errors.Is(err, ErrOptions) {
		t.Errorf("more chunks than ring slots: %v", err)
	}
}
