package sched

import (
	"errors"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// naive follows the paper's description literally: two queues, the second a copy of the first.
type naive struct {
	sched, prefetch []uint32
	wnd             int
}

func (n *naive) push(id uint32) {
	n.sched, n.prefetch = append(n.sched, id), append(n.prefetch, id)
}

func (n *naive) pop() (uint32, bool) {
	if len(n.sched) == 0 {
		return 0, false
	}
	if len(n.prefetch) == len(n.sched) {
		n.prefetch = n.prefetch[1:]
	}
	id := n.sched[0]
	n.sched = n.sched[1:]
	return id, true
}

func (n *naive) remove(id uint32) {
	same := func(other uint32) bool { return other == id }
	n.sched = slices.DeleteFunc(n.sched, same)
	n.prefetch = slices.DeleteFunc(n.prefetch, same)
}

// next takes from the prefetch queue "once the capacity difference between the prefetch and
// scheduling queues falls below" the window (III.A).
func (n *naive) next() (uint32, bool) {
	if len(n.prefetch) == 0 || len(n.sched)-len(n.prefetch) >= n.wnd {
		return 0, false
	}
	id := n.prefetch[0]
	n.prefetch = n.prefetch[1:]
	return id, true
}

func TestQueueModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ids := rapid.IntRange(1, 40).Draw(t, "ids")
		wnd := rapid.IntRange(0, 12).Draw(t, "window")
		q, err := New[uint32](ids, wnd)
		if err != nil {
			t.Fatal(err)
		}
		// The cursors start anywhere, so that they wrap.
		q.head = rapid.Uint32().Draw(t, "start")
		q.pre, q.tail = q.head, q.head
		n := &naive{wnd: wnd}
		queued := make([]bool, ids)
		same := func(what string, a uint32, aok bool, b uint32, bok bool) {
			if a != b || aok != bok {
				t.Fatalf("%s is %d, %v; two queues give %d, %v", what, a, aok, b, bok)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				id := rapid.IntRange(0, ids-1).Draw(t, "id")
				if queued[id] {
					return
				}
				queued[id] = true
				n.push(uint32(id))
				if !q.Push(uint32(id)) {
					t.Fatal("full with each ID in it at most once")
				}
			},
			"pop": func(*rapid.T) {
				p, pok := q.Peek()
				a, aok := q.Pop()
				b, bok := n.pop()
				same("Pop", a, aok, b, bok)
				same("Peek", p, pok, b, bok)
				if aok {
					queued[a] = false
				}
			},
			"prefetch": func(*rapid.T) {
				a, aok := q.Prefetch()
				b, bok := n.next()
				same("Prefetch", a, aok, b, bok)
			},
			"remove": func(t *rapid.T) {
				id := rapid.IntRange(0, ids-1).Draw(t, "removed")
				if got := q.Remove(uint32(id)); got != queued[id] {
					t.Fatalf("Remove(%d) = %v, want %v", id, got, queued[id])
				}
				queued[id] = false
				n.remove(uint32(id))
			},
			"window": func(t *rapid.T) {
				n.wnd = rapid.IntRange(0, 12).Draw(t, "window")
				if err := q.SetWindow(n.wnd); err != nil {
					t.Fatal(err)
				}
			},
			"": func(t *rapid.T) {
				if q.Len() != len(n.sched) || q.Prefetched() != len(n.sched)-len(n.prefetch) ||
					q.Window() != n.wnd {
					t.Fatalf("Len %d, Prefetched %d, Window %d; two queues have %d, %d, %d",
						q.Len(), q.Prefetched(), q.Window(), len(n.sched),
						len(n.sched)-len(n.prefetch), n.wnd)
				}
				if q.BelowWindow() != (len(n.sched) < n.wnd) {
					t.Fatalf("BelowWindow() = %v with %d active and a window of %d",
						q.BelowWindow(), len(n.sched), n.wnd)
				}
			},
		})
	})
}

// With all QPs busy, each is prefetched once per Pop, wnd pops before it is served.
func TestPrefetchDistance(t *testing.T) {
	const qps, wnd = 100, 7
	q, err := New[uint32](qps, wnd)
	if err != nil {
		t.Fatal(err)
	}
	for id := range uint32(qps) {
		q.Push(id)
	}
	var served, fetched []uint32
	for range 5 * qps {
		for id, ok := q.Prefetch(); ok; id, ok = q.Prefetch() {
			fetched = append(fetched, id)
		}
		if len(fetched)-len(served) != wnd {
			t.Fatalf("after %d pops prefetching is %d ahead, want %d", len(served),
				len(fetched)-len(served), wnd)
		}
		id, _ := q.Pop()
		served = append(served, id)
		q.Push(id)
	}
	if !slices.Equal(served, fetched[:len(served)]) {
		t.Fatal("QPs are not fetched in the order in which they are served")
	}
}

// A QP with work waits until every other QP was served at most once.
func TestFairness(t *testing.T) {
	const qps = 10_000
	q, err := New[uint32](qps, 8)
	if err != nil {
		t.Fatal(err)
	}
	for id := range uint32(qps) {
		q.Push(id)
	}
	last := make([]int, qps)
	for turn := 1; turn <= 4*qps; turn++ {
		id, _ := q.Pop()
		if wait := turn - last[id]; wait > qps {
			t.Fatalf("QP %d waited %d pops among %d QPs", id, wait, qps)
		}
		last[id] = turn
		q.Push(id)
	}
}

func TestBounds(t *testing.T) {
	for _, c := range []struct {
		capacity, wnd int
		want          error
	}{
		{1, 0, nil}, {1, 7, nil}, {65536, MaxWindow, nil}, {65537, 1, nil},
		{0, 7, ErrCapacity}, {-1, 7, ErrCapacity}, {MaxCapacity + 1, 7, ErrCapacity},
		{math.MaxInt, 7, ErrCapacity},
		{64, -1, ErrWindow}, {64, MaxWindow + 1, ErrWindow}, {64, math.MinInt, ErrWindow},
	} {
		q, err := New[uint32](c.capacity, c.wnd)
		if !errors.Is(err, c.want) {
			t.Errorf("New[uint32](%d, %d): %v, want %v", c.capacity, c.wnd, err, c.want)
		}
		if err == nil && q.Cap() < c.capacity {
			t.Errorf("New[uint32](%d) has capacity %d", c.capacity, q.Cap())
		}
	}
}

// An owner that pushes an ID twice gets an error, and the queue stays intact.
func TestFull(t *testing.T) {
	q, err := New[uint32](3, 2)
	if err != nil {
		t.Fatal(err)
	}
	for id := range uint32(4) {
		if !q.Push(id) {
			t.Fatalf("ID %d of 4 does not fit", id)
		}
	}
	if q.Push(4) {
		t.Fatal("a fifth ID in a ring of four")
	}
	for want := range uint32(4) {
		if id, ok := q.Pop(); !ok || id != want {
			t.Fatalf("Pop is %d, %v, want %d", id, ok, want)
		}
	}
}

func TestWindow(t *testing.T) {
	const us = time.Microsecond
	for _, c := range []struct {
		chunk int
		bw    float64
		kinds int
		delay time.Duration
		want  int
	}{
		{1000, 1e9, 1, us, 1}, // 1 us hides exactly 1 us
		{1000, 1e9, 4, us, 4},
		{1000, 1e9, 4, us + 1, 5},
		{1000, 1e9, 1, 1, 1}, // any delay needs one QP
		{500, 1e9, 4, us, 8}, // smaller chunks need a larger window (III.A)
		{1, 1e12, 4, time.Second, MaxWindow},
		{0, 1e9, 4, us, 0}, {-1, 1e9, 4, us, 0}, {1000, 0, 4, us, 0}, {1000, -1, 4, us, 0},
		{1000, 1e9, 0, us, 0},
		{1000, 1e9, 4, 0, 0}, {1000, math.NaN(), 4, us, 0}, {1000, math.Inf(1), 4, us, MaxWindow},
	} {
		if got := Window(c.chunk, c.bw, c.kinds, c.delay); got != c.want {
			t.Errorf("Window(%d, %g, %d, %v) = %d, want %d", c.chunk, c.bw, c.kinds, c.delay, got,
				c.want)
		}
	}
}

func TestNoAllocation(t *testing.T) {
	q, err := New[uint32](64, 7)
	if err != nil {
		t.Fatal(err)
	}
	for id := range uint32(64) {
		q.Push(id)
	}
	if n := testing.AllocsPerRun(1000, func() {
		q.Prefetch()
		if id, ok := q.Pop(); ok && !q.BelowWindow() {
			q.Push(id)
		}
	}); n != 0 {
		t.Errorf("a pop allocates %v times", n)
	}
}

// The queue does not keep a popped ID alive.
func TestPopReleasesID(t *testing.T) {
	q, err := New[*int](3, 2)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		q.Push(&i)
		q.Prefetch()
		if got, ok := q.Pop(); !ok || got != &i {
			t.Fatalf("%v, %v", got, ok)
		}
	}
	for i, p := range q.ring {
		if p != nil {
			t.Errorf("slot %d holds %v", i, *p)
		}
	}
}

func BenchmarkPop(b *testing.B) {
	q, err := New[uint32](65536, 7)
	if err != nil {
		b.Fatal(err)
	}
	for id := range uint32(65536) {
		q.Push(id)
	}
	for b.Loop() {
		q.Prefetch()
		id, _ := q.Pop()
		q.Push(id)
	}
}
