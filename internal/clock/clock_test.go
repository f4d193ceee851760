package clock

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// machine is a clock and a counter under the test's control.
type machine struct {
	ns    int64
	ticks float64
	speed float64 // ticks a ns
	looks int
}

func (m *machine) pass(ns int64) {
	m.ns += ns
	m.ticks += float64(ns) * m.speed
}

func (m *machine) clock() *Clock {
	return &Clock{read: func() int64 { m.looks++; return m.ns }, count: func() uint64 { return uint64(m.ticks) }}
}

// In steady use the counter stands in for the clock nearly always, and is right to a few nanoseconds.
func TestCounterStandsIn(t *testing.T) {
	for _, speed := range []float64{0.024, 1, 2.1, 4.7} {
		m := &machine{ns: 1, ticks: 1e6, speed: speed}
		c := m.clock()
		for range 20_050 { // 2 ms, to learn
			m.pass(100)
			c.Now()
		}
		c.Now()
		if m.pass(900); !c.Fresh() {
			t.Errorf("%v ticks a ns: 0.9 us are not fresh", speed)
		}
		was := m.ns
		m.pass(50)
		if d := float64(c.Then() - was); math.Abs(d) > 2+1/speed {
			t.Errorf("%v ticks a ns: 50 ns later, what was then is wrong by %v ns", speed, d)
		}
		if m.pass(1050); c.Fresh() {
			t.Errorf("%v ticks a ns: 1.1 us are fresh", speed)
		}
		m.looks = 0
		for range 100_000 {
			m.pass(100)
			if d := c.Now() - m.ns; d < -100 || d > 100 {
				t.Fatalf("%v ticks a ns: wrong by %d ns", speed, d)
			}
		}
		if m.looks > 100_000*100/trust+2 {
			t.Errorf("%v ticks a ns: %d looks at the clock in 10 ms", speed, m.looks)
		}
	}
}

// Whatever the counter does, time never runs backwards, and is wrong by not more than trust says.
func TestBadCounters(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	m := &machine{ns: 1, ticks: 1 << 40, speed: 3}
	c := m.clock()
	last := int64(0)
	for i := range 300_000 {
		m.pass(r.Int64N(2000))
		switch r.IntN(5000) {
		case 0:
			m.ticks += (r.Float64() - 0.5) * 1e9 // it jumps
		case 1:
			m.speed = 0.01 + r.Float64()*8 // it changes speed
		case 2:
			m.pass(r.Int64N(5e9)) // a rest
		case 3:
			m.ticks = 0
		}
		now := c.Now()
		if r.IntN(2) == 0 && c.Fresh() {
			now = c.Then()
		}
		if now < last {
			t.Fatalf("step %d: time runs back by %d ns", i, last-now)
		}
		// Of the counter's own error, only what it may add in a stretch of trust, at a rate that was right before.
		if d := now - m.ns; d > 900*trust || d < -900*trust {
			t.Fatalf("step %d: wrong by %d ns", i, d)
		}
		last = now
	}
}

// The real counter agrees with the real clock.
func TestRealCounter(t *testing.T) {
	start := time.Now()
	read := func() int64 { return int64(time.Since(start)) + 1 }
	c := New(read)
	worst := int64(0)
	for last := int64(0); last < 30e6; {
		before := read()
		now := c.Now()
		after := read()
		if now < last {
			t.Fatal("time runs back")
		}
		last = now
		worst = max(worst, before-now-trust, now-after)
	}
	if worst > 2000 {
		t.Errorf("off by %d ns", worst)
	}
	t.Logf("counter in use: %v", c.span != 0)
}

func TestNoAllocation(t *testing.T) {
	c := New(func() int64 { return 1 })
	if n := testing.AllocsPerRun(1000, func() { c.Now() }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkNow(b *testing.B) {
	start := time.Now()
	read := func() int64 { return int64(time.Since(start)) + 1 }
	b.Run("system", func(b *testing.B) {
		for b.Loop() {
			read()
		}
	})
	c := New(read)
	b.Run("tick", func(b *testing.B) {
		for b.Loop() {
			c.Now()
		}
	})
}
