package wire

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

func TestOutput(t *testing.T) {
	o := Output{Rate: 8e6} // a byte takes 1 us
	if n := o.Backlog(1000); n != 0 {
		t.Errorf("Backlog() = %d before the first frame, want 0", n)
	}
	for _, c := range []struct {
		now  int64
		n    int
		sent int64
	}{{1000, 10, 11_000}, {2000, 5, 16_000}, {16_000, 1, 17_000}, {20_500, 2, 22_500}} {
		if at := o.Send(c.now, c.n); at != c.sent {
			t.Errorf("Send(%d, %d) = %d, want %d", c.now, c.n, at, c.sent)
		}
	}
	for _, c := range []struct {
		now  int64
		want int
	}{{20_500, 2}, {20_501, 2}, {21_500, 1}, {22_499, 1}, {22_500, 0}, {1 << 60, 0}} {
		if n := o.Backlog(c.now); n != c.want {
			t.Errorf("Backlog(%d) = %d, want %d", c.now, n, c.want)
		}
	}
	// An hour at 400 Gbit/s does not overflow.
	o = Output{Rate: 400e9, Busy: int64(time.Hour)}
	if n, want := o.Backlog(0), 180_000_000_000_000; n != want {
		t.Errorf("Backlog(0) = %d, want %d", n, want)
	}
	o = Output{Rate: math.MaxInt64, Busy: math.MaxInt64}
	if n := o.Backlog(0); n != math.MaxInt {
		t.Errorf("Backlog(0) = %d for the longest time at the highest rate, want %d", n, math.MaxInt)
	}
	if n := (&Output{Busy: 5}).Backlog(0); n != 0 {
		t.Errorf("Backlog(0) = %d without a rate, want 0", n)
	}
}

// After DrainTime of what exceeds a target, the backlog has the size of the target, and shortly
// before it is larger.
func TestDrainTime(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 10_000 {
		rate := 1_000_000 + r.Int64N(100_000_000_000)
		o := Output{Rate: rate}
		for range 1 + r.IntN(20) {
			o.Send(0, 64+r.IntN(9000))
		}
		now := r.Int64N(o.Busy)
		backlog := o.Backlog(now)
		target := r.IntN(backlog)
		drained := now + DrainTime(backlog-target, rate)
		if n := o.Backlog(drained); n > target {
			t.Fatalf("rate %d: Backlog() = %d after DrainTime, want at most %d", rate, n, target)
		}
		if early := drained - 2*DrainTime(1, rate); early >= now && o.Backlog(early) <= target {
			t.Fatalf("rate %d: Backlog() = %d two bytes before DrainTime, want more than %d", rate,
				o.Backlog(early), target)
		}
	}
}
