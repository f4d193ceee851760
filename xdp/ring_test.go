package xdp

import (
	"errors"
	"math"
	"runtime"
	"sync/atomic"
	"testing"
)

// twoSides gives a ring's producer and consumer side over common memory, with both indices at start.
func twoSides(size int, start uint32) (producer, consumer *ring[uint64]) {
	var p, c, f atomic.Uint32
	p.Store(start)
	c.Store(start)
	slots := make([]uint64, size)
	side := func() *ring[uint64] {
		return &ring[uint64]{producer: &p, consumer: &c, flags: &f, slots: slots, mask: uint32(size - 1), own: start, seen: start}
	}
	return side(), side()
}

// The indices run freely and wrap at 2^32; a ring holds exactly its size.
func TestRingWraps(t *testing.T) {
	const size = 8
	out, in := twoSides(size, math.MaxUint32-20)
	next, want := uint64(0), uint64(0)
	for round := range 20 {
		n := out.space(size)
		if n != size {
			t.Fatalf("round %d: space for %d", round, n)
		}
		for range n {
			out.put(next)
			next++
		}
		if in.ready(1) != 0 {
			t.Fatal("slots can be read before they are published")
		}
		out.publish()
		if out.space(1) != 0 || out.queued() != size {
			t.Fatalf("round %d: full ring has space %d, queued %d", round, out.space(1), out.queued())
		}
		k := in.ready(1)
		if k != size {
			t.Fatalf("round %d: %d ready", round, k)
		}
		for i := range k {
			if *in.at(i) != want {
				t.Fatalf("got %d, want %d", *in.at(i), want)
			}
			want++
		}
		in.skip(k)
		in.consumed()
	}
}

// What one thread puts another reads, in order, without a lock. Under the race detector this shows
// that the indices order the slots.
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
				t.Fatalf("got %d, want %d", *in.at(i), want)
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
		{Mode: 9}, {Queues: -1}, {Queues: 10000}, {RingSize: 100}, {RingSize: 16}, {RingSize: 1 << 20}, {Chunks: -1},
		{BusyPoll: -1}, {Mode: Generic, ZeroCopy: &yes},
	} {
		if _, err := Open("lo", o); !errors.Is(err, ErrOptions) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	for _, m := range []Mode{Auto, Native, Generic} {
		if got, err := ParseMode(m.String()); err != nil || got != m {
			t.Errorf("%v: %v, %v", m, got, err)
		}
	}
	if _, err := ParseMode("fast"); !errors.Is(err, ErrOptions) {
		t.Errorf("ParseMode(fast): %v", err)
	}
}

// With many queues the default rings shrink so that the packet memory stays bounded.
func TestDefaultSizesAreBounded(t *testing.T) {
	for queues := 1; queues <= maxQueues; queues++ {
		var o Options
		if err := o.sizes(queues); err != nil {
			t.Fatal(err)
		}
		if total := (queues + 1) * o.Chunks * 2 * chunkSize; total > maxUMEM || o.RingSize < minRing {
			t.Fatalf("%d queues: rings of %d, %d MiB", queues, o.RingSize, total>>20)
		}
	}
	o := Options{RingSize: 64, Chunks: 128}
	if err := o.sizes(1); !errors.Is(err, ErrOptions) {
		t.Errorf("more chunks than ring: %v", err)
	}
}
