package loopback

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/gorxe/gorxe/driver"
)

// outcome summarizes a stream of numbered frames at the receiver.
type outcome struct {
	sent, received int
	lost, twice    int // numbers that never arrived, or more than once
	overtaken      int // frames that arrived after one with a higher number
	damaged        int // frames whose bytes differ from those sent
	damagedHeader  int // frames with a damaged Ethernet header
	maxFlips       int
}

// stream sends count frames, one per gap of virtual time, through wrappers or directly, and
// summarizes what arrives.
func stream(t testing.TB, l *Link, from, to driver.Port, count int, gap time.Duration) outcome {
	t.Helper()
	const size = 200
	o := outcome{sent: count}
	seen := make([]int, count)
	highest := -1
	want := make([]byte, size)
	var bufs [16]driver.Buf
	look := func() {
		for n := to.Receive(bufs[:]); n > 0; n = to.Receive(bufs[:]) {
			for _, b := range bufs[:n] {
				number := identify(b.B)
				fill(want, from.Info().MAC, to.Info().MAC, size, uint64(number))
				flips := diffBits(b.B, want)
				if o.received++; flips > 0 {
					o.damaged++
					o.maxFlips = max(o.maxFlips, flips)
				}
				if diffBits(b.B[:headerLen], want[:headerLen]) > 0 {
					o.damagedHeader++
				}
				seen[number]++
				if number < highest {
					o.overtaken++
				}
				highest = max(highest, number)
			}
			to.Release(bufs[:n])
		}
	}
	for i := range count {
		send(t, from, to, size, 1, uint64(i))
		look()
		l.Advance(gap)
	}
	for range 1000 { // frames that are still held
		l.Advance(time.Millisecond)
		from.Alloc(nil)
		look()
	}
	for _, n := range seen {
		if n == 0 {
			o.lost++
		}
		if n > 1 {
			o.twice++
		}
	}
	return o
}

// identify returns a frame's number. The frame contains it three times, and up to three bits may be
// wrong.
func identify(b []byte) int {
	x, y, z := binary.BigEndian.Uint64(b[14:]), binary.BigEndian.Uint64(b[22:]), binary.BigEndian.Uint64(b[30:])
	return int(x&y | y&z | x&z)
}

func diffBits(a, b []byte) int {
	n := 0
	for i := range a {
		for x := a[i] ^ b[i]; x != 0; x &= x - 1 {
			n++
		}
	}
	return n
}

// paths are the three places where a plan can be applied.
var paths = []struct {
	name  string
	build func(t testing.TB, plan Plan, seed uint64) (*Link, driver.Port, driver.Port,
		func() Faults)
}{
	{"link", func(t testing.TB, plan Plan, seed uint64) (*Link, driver.Port, driver.Port,
		func() Faults) {
		l := newLink(t, Config{Virtual: true, Seed: seed, Plan: plan, Poison: true})
		return l, l.Port(0), l.Port(1), func() Faults { return l.Faults(0, 1) }
	}},
	{"inject transmit", func(t testing.TB, plan Plan, seed uint64) (*Link, driver.Port, driver.Port,
		func() Faults) {
		l := newLink(t, Config{Virtual: true, Poison: true})
		p := InjectWith(l.Port(0), InjectConfig{Seed: seed, Transmit: plan, Clock: l.Now})
		return l, p, l.Port(1), func() Faults { tx, _, _ := FaultsOf(p); return tx }
	}},
	{"inject receive", func(t testing.TB, plan Plan, seed uint64) (*Link, driver.Port, driver.Port,
		func() Faults) {
		l := newLink(t, Config{Virtual: true, Poison: true})
		p := InjectWith(l.Port(1), InjectConfig{Seed: seed, Receive: plan, Clock: l.Now})
		return l, l.Port(0), p, func() Faults { _, rx, _ := FaultsOf(p); return rx }
	}},
}

// near checks that got is within 5 standard deviations of n draws with probability p.
func near(t *testing.T, what string, got, n int, p float64) {
	t.Helper()
	mean, sd := float64(n)*p, math.Sqrt(float64(n)*p*(1-p))
	if math.Abs(float64(got)-mean) > 5*sd {
		t.Errorf("%s: %d of %d, want %.0f within %.0f", what, got, n, mean, 5*sd)
	}
}

// Every fault occurs with its probability, and no other one does.
func TestFaultRates(t *testing.T) {
	n := 6000
	if raceEnabled {
		n = 1500 // no second goroutine here, so the race detector finds nothing
	}
	for _, path := range paths {
		for _, c := range []struct {
			name string
			plan Plan
			gap  time.Duration
		}{
			{"perfect", Plan{}, time.Microsecond},
			{"loss", Plan{Loss: 0.2}, time.Microsecond},
			{"duplicate", Plan{Duplicate: 0.1}, time.Microsecond},
			{"corrupt", Plan{Corrupt: 0.05}, time.Microsecond},
			{"reorder", Plan{Reorder: 0.05, Hold: 20 * time.Microsecond}, time.Microsecond},
			{"jitter keeps order",
				Plan{Delay: 50 * time.Microsecond, Jitter: 40 * time.Microsecond},
				time.Microsecond},
			{"all", Plan{Loss: 0.1, Duplicate: 0.1, Corrupt: 0.1, Reorder: 0.1,
				Hold: 20 * time.Microsecond, Delay: 10 * time.Microsecond,
				Jitter: 5 * time.Microsecond}, time.Microsecond},
		} {
			t.Run(path.name+"/"+c.name, func(t *testing.T) {
				l, from, to, faults := path.build(t, c.plan, 7)
				o := stream(t, l, from, to, n, c.gap)
				f := faults()
				near(t, "lost", o.lost, n, c.plan.Loss)
				left := n - o.lost
				near(t, "twice", o.twice, left, c.plan.Duplicate)
				near(t, "damaged", o.damaged, left+o.twice, c.plan.Corrupt)
				if o.damagedHeader > 0 || o.maxFlips > 3 {
					t.Errorf("%d Ethernet headers are damaged, at most %d bits of a frame",
						o.damagedHeader, o.maxFlips)
				}
				if o.received != left+o.twice {
					t.Errorf("received %d frames, want %d and %d duplicates", o.received, left,
						o.twice)
				}
				near(t, "reordered, as counted", int(f.Reordered), left+o.twice, c.plan.Reorder)
				if low, high := int(f.Reordered)*8/10, int(f.Reordered); o.overtaken > high ||
					o.overtaken < low {
					t.Errorf("%d frames were overtaken, want %d to %d", o.overtaken, low, high)
				}
				if int(f.Frames) != n || int(f.Lost) != o.lost || int(f.Duplicated) != o.twice ||
					f.Overflow != 0 {
					t.Errorf("counters %+v differ from outcome %+v", f, o)
				}
				if held := l.Port(0).held; held != 0 {
					t.Errorf("%d send buffers leaked", held)
				}
				l.Port(0).collect()
				if p := l.Port(0); len(p.free) != p.bufs {
					t.Errorf("%d of %d buffers were returned", len(p.free), p.bufs)
				}
			})
		}
	}
}

// arrivals returns when each of count frames arrives that are sent at the same time.
func arrivals(t *testing.T, plan Plan, count, size int) []time.Duration {
	t.Helper()
	l := newLink(t, Config{Virtual: true, Plan: plan, Seed: 3})
	send(t, l.Port(0), l.Port(1), size, count, 0)
	var at []time.Duration
	for {
		next, ok := l.NextEvent()
		if !ok {
			return at
		}
		l.AdvanceTo(next)
		for range receive(t, l.Port(1)) {
			at = append(at, time.Duration(l.Now()-startTime))
		}
	}
}

func TestDelayAndJitter(t *testing.T) {
	for _, at := range arrivals(t, Plan{Delay: time.Millisecond}, 10, 100) {
		if at != time.Millisecond {
			t.Errorf("arrived after %v, want 1ms", at)
		}
	}
	at := arrivals(t, Plan{Delay: time.Millisecond, Jitter: time.Millisecond}, 100, 100)
	if !slices.IsSorted(at) || at[0] < time.Millisecond || at[99] >= 2*time.Millisecond ||
		at[0] == at[99] {
		t.Errorf("with jitter, arrivals range from %v to %v", at[0], at[99])
	}
}

// 1000 bytes at 8 Mbit/s take one millisecond.
func TestBandwidth(t *testing.T) {
	for i, at := range arrivals(t, Plan{Bandwidth: 8e6}, 10, 1000) {
		if want := time.Duration(i+1) * time.Millisecond; at != want {
			t.Errorf("frame %d arrived after %v, want %v", i, at, want)
		}
	}
}

// No frame arrives during a pause and all arrive afterwards. Pauses take the expected share of the
// time.
func TestPauses(t *testing.T) {
	l := newLink(t, Config{Virtual: true,
		Plan: Plan{PauseEvery: time.Millisecond, PauseFor: time.Millisecond}, Seed: 3})
	const n, gap = 20000, 10 * time.Microsecond
	received, silent, longest, since := 0, 0, 0, 0
	for range n {
		send(t, l.Port(0), l.Port(1), 60, 1, 0)
		k := len(receive(t, l.Port(1)))
		if received += k; k == 0 {
			silent++
			since++
			longest = max(longest, since)
		} else {
			since = 0
		}
		l.Advance(gap)
	}
	l.Advance(time.Second)
	received += len(receive(t, l.Port(1)))
	if received != n {
		t.Errorf("received %d of %d frames", received, n)
	}
	if share := float64(silent) / n; share < 0.4 || share > 0.6 {
		t.Errorf("silent for %.0f%% of the time, want about half", 100*share)
	}
	if d := time.Duration(longest) * gap; d > time.Millisecond+2*gap {
		t.Errorf("silent for %v at a time, but a pause takes 1ms", d)
	}
}

// The first frame after a long silence costs no time for the pauses in between.
func TestPauseAfterLongSilence(t *testing.T) {
	l := newLink(t, Config{Virtual: true,
		Plan: Plan{PauseEvery: time.Microsecond, PauseFor: time.Microsecond}})
	for range 100 {
		l.Advance(24 * time.Hour)
		send(t, l.Port(0), l.Port(1), 60, 1, 0)
	}
	l.Advance(time.Second)
	if n := len(receive(t, l.Port(1))); n != 100 {
		t.Errorf("received %d of 100 frames", n)
	}
}

func TestFilter(t *testing.T) {
	l := newLink(t, Config{Virtual: true, Plan: Plan{Hold: 10 * time.Microsecond}})
	actions := []Action{Pass, Drop, Duplicate, Corrupt, Hold, Pass}
	i := 0
	l.SetFilter(0, 1, func([]byte) Action { i++; return actions[i-1] })
	send(t, l.Port(0), l.Port(1), 100, len(actions), 10)
	l.SetFilter(0, 1, nil)
	var got []string
	var bufs [16]driver.Buf
	want := make([]byte, 100)
	look := func() {
		n := l.Port(1).Receive(bufs[:])
		for _, b := range bufs[:n] {
			number := identify(b.B)
			fill(want, l.Port(0).mac, l.Port(1).mac, 100, uint64(number))
			s := fmt.Sprint(number)
			if !bytes.Equal(b.B, want) {
				s += " damaged"
			}
			got = append(got, s)
		}
		l.Port(1).Release(bufs[:n])
	}
	look()
	got = append(got, "later")
	l.Advance(10 * time.Microsecond)
	look()
	if s := fmt.Sprintf("%q", got); s != `["10" "12" "12" "13 damaged" "15" "later" "14"]` {
		t.Errorf("received %s", s)
	}
	if f := l.Faults(0, 1); f.Lost != 1 || f.Duplicated != 1 || f.Corrupted != 1 ||
		f.Reordered != 1 {
		t.Errorf("Faults() = %+v", f)
	}
}

// Each direction has its own plan and dice. A plan can change at any time.
func TestSetPlan(t *testing.T) {
	l := newLink(t, Config{Virtual: true})
	if err := l.SetPlan(0, 1, Plan{Loss: 1}); err != nil {
		t.Fatal(err)
	}
	if l.SetPlan(0, 1, Plan{Loss: 2}) == nil {
		t.Error("SetPlan accepted a loss probability of 2")
	}
	a, b := l.Port(0), l.Port(1)
	send(t, a, b, 60, 5, 0)
	send(t, b, a, 60, 5, 0)
	if x, y := len(receive(t, b)), len(receive(t, a)); x != 0 || y != 5 {
		t.Errorf("received %d frames forward and %d back, want 0 and 5", x, y)
	}
	_ = l.SetPlan(0, 1, Plan{})
	send(t, a, b, 60, 5, 0)
	if x := len(receive(t, b)); x != 5 {
		t.Errorf("received %d frames after the plan was removed, want 5", x)
	}
	// A delayed frame is not overtaken when the delay is removed.
	_ = l.SetPlan(0, 1, Plan{Delay: time.Millisecond})
	send(t, a, b, 60, 1, 1)
	_ = l.SetPlan(0, 1, Plan{})
	send(t, a, b, 60, 1, 2)
	l.Advance(time.Millisecond)
	send(t, a, b, 60, 1, 3)
	if got := receive(t, b); !slices.Equal(got, []uint64{1, 2, 3}) {
		t.Errorf("received in order %v", got)
	}
}

// The same seed and calls give the same trace. Another seed gives a different one.
func TestReplay(t *testing.T) {
	plan := Plan{Loss: 0.1, Duplicate: 0.1, Corrupt: 0.1, Reorder: 0.1, Delay: time.Microsecond,
		Jitter:     time.Microsecond,
		PauseEvery: time.Millisecond, PauseFor: time.Microsecond, Bandwidth: 10e9}
	run := func(seed uint64) uint64 {
		l := newLink(t, Config{Virtual: true, Seed: seed, Plan: plan})
		stream(t, l, l.Port(0), l.Port(1), 500, time.Microsecond)
		return l.TraceHash()
	}
	a, b, c := run(1), run(1), run(2)
	if a != b || a == 0 {
		t.Errorf("the same seed gave %#x and %#x", a, b)
	}
	if a == c {
		t.Error("different seeds gave the same trace")
	}
}
