package clock

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// machine is a system clock and a counter that the test controls.
type machine struct {
	ns       int64
	counts   float64
	speed    float64 // counts per ns
	readings int
}

func (m *machine) pass(ns int64) {
	m.ns += ns
	m.counts += float64(ns) * m.speed
}

func (m *machine) clock() *Clock {
	return &Clock{read: func() int64 { m.readings++; return m.ns },
		count: func() uint64 { return uint64(m.counts) }}
}

// The counter replaces most readings of the system clock and is accurate to a few nanoseconds.
func TestCounterReplacesClock(t *testing.T) {
	for _, speed := range []float64{0.024, 1, 2.1, 4.7} {
		m := &machine{ns: 1, counts: 1e6, speed: speed}
		c := m.clock()
		for range 20_050 { // 2 ms, to measure the rate
			m.pass(100)
			c.Now()
		}
		c.Now()
		if m.pass(900); !c.Fresh() {
			t.Errorf("%v counts per ns: Fresh() = false after 0.9 us", speed)
		}
		was := m.ns
		m.pass(50)
		if d := float64(c.Then() - was); math.Abs(d) > 2+1/speed {
			t.Errorf("%v counts per ns: Then() is off by %v ns", speed, d)
		}
		if m.pass(1050); c.Fresh() {
			t.Errorf("%v counts per ns: Fresh() = true after 1.1 us", speed)
		}
		m.readings = 0
		for range 100_000 {
			m.pass(100)
			if d := c.Now() - m.ns; d < -100 || d > 100 {
				t.Fatalf("%v counts per ns: Now() is off by %d ns", speed, d)
			}
		}
		if m.readings > 100_000*100/trust+2 {
			t.Errorf("%v counts per ns: %d readings of the system clock in 10 ms", speed,
				m.readings)
		}
	}
}

// Time never runs backwards, and its error is bounded, whatever the counter does.
func TestBadCounters(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	m := &machine{ns: 1, counts: 1 << 40, speed: 3}
	c := m.clock()
	last := int64(0)
	for i := range 300_000 {
		m.pass(r.Int64N(2000))
		switch r.IntN(5000) {
		case 0:
			m.counts += (r.Float64() - 0.5) * 1e9 // the counter jumps
		case 1:
			m.speed = 0.01 + r.Float64()*8 // its rate changes
		case 2:
			m.pass(r.Int64N(5e9)) // a pause
		case 3:
			m.counts = 0
		}
		now := c.Now()
		if r.IntN(2) == 0 && c.Fresh() {
			now = c.Then()
		}
		if now < last {
			t.Fatalf("step %d: time ran backwards by %d ns", i, last-now)
		}
		// Besides trust, allow what a wrong rate can add during that time.
		if d := now - m.ns; d > 900*trust || d < -900*trust {
			t.Fatalf("step %d: Now() is off by %d ns", i, d)
		}
		last = now
	}
}

// The real counter agrees with the real clock. On a busy virtual machine the test may be stopped
// between two readings, so it tries several times.
func TestRealCounter(t *testing.T) {
	const tries = 10
	for i := 1; ; i++ {
		off, used := realCounter(t)
		t.Logf("counter in use: %v; Now() is off by at most %d ns", used, off)
		if off <= 2000 {
			return
		}
		if i == tries {
			t.Fatal("Now() was off by more than 2000 ns each time")
		}
	}
}

// realCounter reads a Clock for a while. It returns by how much the worst reading was off, and
// whether the Clock uses the counter.
func realCounter(t *testing.T) (off int64, used bool) {
	start := time.Now()
	read := func() int64 { return int64(time.Since(start)) + 1 }
	c := New(read)
	for last := int64(0); last < 30e6; {
		before := read()
		now := c.Now()
		after := read()
		if now < last {
			t.Fatal("time ran backwards")
		}
		last = now
		off = max(off, before-now-trust, now-after)
	}
	return off, c.span != 0
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
	b.Run("counter", func(b *testing.B) {
		for b.Loop() {
			c.Now()
		}
	})
}
