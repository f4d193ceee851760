package loopback

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/gorxe/gorxe/internal/wire"
)

// DefaultHold is the default of Plan.Hold.
const DefaultHold = 100 * time.Microsecond

// ErrPlan means that a Plan has a probability outside 0 to 1 or a negative duration.
var ErrPlan = errors.New("loopback: invalid fault plan")

// Plan describes the faults of one direction. The zero Plan is a perfect link. Probabilities are
// per frame, from 0 to 1, and independent of each other.
type Plan struct {
	Loss      float64 // the frame is lost
	Duplicate float64 // it arrives twice
	Reorder   float64 // it is delayed so that others overtake it
	Corrupt   float64 // 1 to 3 bits after the Ethernet header are flipped

	// Hold limits the additional delay of a reordered frame; 0 means DefaultHold. A duplicate is
	// reordered independently.
	Hold time.Duration

	// Delay is the time on the link, and Jitter the upper limit of a random addition, uniformly
	// distributed. Neither changes the order of frames.
	Delay, Jitter time.Duration

	// Bandwidth is the number of bits per second, counting whole frames; 0 means unlimited.
	Bandwidth int64

	// PauseEvery is the mean time between pauses, and PauseFor their length. A frame that would
	// arrive during a pause arrives at its end. 0 means no pauses.
	PauseEvery, PauseFor time.Duration
}

// Validate returns an error that wraps ErrPlan if a value is out of range.
func (p *Plan) Validate() error {
	for _, f := range []struct {
		name string
		v    float64
	}{{"Loss", p.Loss}, {"Duplicate", p.Duplicate}, {"Reorder", p.Reorder},
		{"Corrupt", p.Corrupt}} {
		if !(f.v >= 0 && f.v <= 1) {
			return fmt.Errorf("%w: %s is %v, want a probability from 0 to 1", ErrPlan, f.name, f.v)
		}
	}
	for _, f := range []struct {
		name string
		v    int64
	}{{"Hold", int64(p.Hold)}, {"Delay", int64(p.Delay)}, {"Jitter", int64(p.Jitter)},
		{"Bandwidth", p.Bandwidth},
		{"PauseEvery", int64(p.PauseEvery)}, {"PauseFor", int64(p.PauseFor)}} {
		if f.v < 0 {
			return fmt.Errorf("%w: %s is negative", ErrPlan, f.name)
		}
	}
	if (p.PauseEvery == 0) != (p.PauseFor == 0) {
		return fmt.Errorf("%w: PauseEvery and PauseFor must both be set", ErrPlan)
	}
	return nil
}

// Faults counts what a plan did to the frames of one direction.
type Faults struct {
	Frames     uint64 // frames to which the plan was applied
	Lost       uint64
	Duplicated uint64
	Reordered  uint64
	Corrupted  uint64
	Held       uint64 // delayed for any reason: delay, jitter, bandwidth, pause, reordering
	Overflow   uint64 // dropped, or sent too early by an injector, because a queue was full
}

// fate is what happens to a frame. Times are on the clock of the owner; 0 means at once.
type fate struct {
	lost, corrupt, dup bool
	due, dupDue        int64
}

// dice draws fates. It belongs to one goroutine.
type dice struct {
	plan    Plan
	perfect bool // plan is the zero Plan
	rng     rand.PCG
	last    int64 // when the last frame in order is due; 0 = not after now
	output  wire.Output
	pause   int64 // start of the current or next pause; 0 = not drawn yet
	counts  Faults
}

func newDice(plan Plan, seed uint64, stream int) dice {
	d := dice{rng: *rand.NewPCG(seed, uint64(stream)+1)}
	d.set(plan)
	return d
}

// set changes the plan. It does not affect frames in flight.
func (d *dice) set(p Plan) {
	d.plan, d.perfect, d.pause, d.output = p, p == Plan{}, 0, wire.Output{Rate: p.Bandwidth}
}

// chance returns true with probability p.
func (d *dice) chance(p float64) bool {
	return p > 0 && float64(d.rng.Uint64()>>11)/(1<<53) < p
}

// within returns a number uniformly distributed in [0, n), or 0 for n <= 0. The bias of the
// remainder is negligible here.
func (d *dice) within(n int64) int64 {
	if n <= 0 {
		return 0
	}
	return int64(d.rng.Uint64() % uint64(n))
}

// idle reports whether every frame arrives at once, so that the clock is not needed.
func (d *dice) idle() bool { return d.perfect && d.last == 0 }

// draw decides the fate of a frame of n bytes that is sent now.
func (d *dice) draw(now int64, n int) (f fate) {
	d.counts.Frames++
	if d.idle() {
		return f
	}
	due := d.inOrder(now, n)
	if f.lost = d.chance(d.plan.Loss); f.lost {
		d.counts.Lost++
		return f
	}
	if f.corrupt = d.chance(d.plan.Corrupt); f.corrupt {
		d.counts.Corrupted++
	}
	f.due = d.delayed(now, due)
	if f.dup = d.chance(d.plan.Duplicate); f.dup {
		d.counts.Duplicated++
		f.dupDue = d.delayed(now, due)
	}
	return f
}

// inOrder returns when a frame arrives if no other overtakes it.
func (d *dice) inOrder(now int64, n int) int64 {
	due := now
	if d.plan.Bandwidth > 0 {
		due = d.output.Send(now, n)
	}
	due += int64(d.plan.Delay) + d.within(int64(d.plan.Jitter))
	due = max(d.afterPause(due), d.last)
	if d.last = due; due <= now {
		d.last = 0
	}
	return due
}

// delayed returns when the frame arrives that is due in order at the given time: later if it is
// reordered, 0 for at once.
func (d *dice) delayed(now, due int64) int64 {
	if d.chance(d.plan.Reorder) {
		d.counts.Reordered++
		due += 1 + d.within(d.hold())
	}
	if due <= now {
		return 0
	}
	d.counts.Held++
	return due
}

// afterPause moves an arrival during a pause to its end. A pause begins PauseEvery/2 to
// PauseEvery*3/2 after the end of the previous one.
func (d *dice) afterPause(due int64) int64 {
	every, length := int64(d.plan.PauseEvery), int64(d.plan.PauseFor)
	if every == 0 {
		return due
	}
	gap := func() int64 { return every/2 + d.within(every) }
	if d.pause == 0 || due-d.pause > 1000*(every+length) {
		d.pause = due + gap() // after a long silence, do not draw every pause in between
	}
	for due >= d.pause+length {
		d.pause += length + gap()
	}
	if due >= d.pause {
		return d.pause + length
	}
	return due
}

// corrupt flips 1 to 3 bits after the Ethernet header. At these lengths a CRC-32 detects any three
// wrong bits, so the ICRC never accepts a corrupted frame unless only fields that it does not cover
// have changed.
func (d *dice) corrupt(b []byte) {
	if len(b) <= headerLen {
		return
	}
	for range 1 + d.within(3) {
		bit := d.within(int64(len(b)-headerLen) * 8)
		b[headerLen+int(bit/8)] ^= 1 << (bit % 8)
	}
}

// apply carries out a filter's decision. For Pass, it applies the plan.
func (d *dice) apply(a Action, now int64, n int) (f fate) {
	if a == Pass {
		return d.draw(now, n)
	}
	d.counts.Frames++
	due := d.inOrder(now, n)
	if due > now {
		f.due, f.dupDue = due, due
	}
	switch a {
	case Drop:
		f.lost = true
		d.counts.Lost++
	case Duplicate:
		f.dup = true
		d.counts.Duplicated++
	case Corrupt:
		f.corrupt = true
		d.counts.Corrupted++
	case Hold:
		f.due = due + d.hold()
		d.counts.Reordered++
	}
	if f.due != 0 {
		d.counts.Held++
	}
	return f
}

// hold returns the maximum delay of a reordered frame.
func (d *dice) hold() int64 {
	if d.plan.Hold == 0 {
		return int64(DefaultHold)
	}
	return int64(d.plan.Hold)
}
