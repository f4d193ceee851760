package loopback

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// DefaultHold is how long a reordered frame is held back at most when the
// Plan does not say.
const DefaultHold = 100 * time.Microsecond

// ErrPlan: a Plan has a probability outside 0..1 or a negative duration.
var ErrPlan = errors.New("loopback: unusable fault plan")

// Plan says what happens to the frames of one direction. The zero Plan is a
// perfect wire. Probabilities are per frame, 0 to 1, and independent of each
// other.
type Plan struct {
	Loss      float64 // the frame vanishes
	Duplicate float64 // it arrives twice
	Reorder   float64 // it is held back while others overtake it
	Corrupt   float64 // 1 to 3 bits behind the Ethernet header are flipped

	// Hold bounds how long a reordered frame is held back beyond its time;
	// 0 means DefaultHold. A duplicate is reordered or not on its own.
	Hold time.Duration

	// Delay is the time on the wire; Jitter a random addition, uniform in
	// [0, Jitter). Neither changes the order.
	Delay, Jitter time.Duration

	// Bandwidth is in bits per second of frame data, 0 for no limit.
	Bandwidth int64

	// PauseEvery is the mean time between pauses, PauseFor their length: a
	// frame that would arrive during a pause arrives at its end. 0: none.
	PauseEvery, PauseFor time.Duration
}

// Validate returns an error wrapping ErrPlan for values out of range.
func (p *Plan) Validate() error {
	for _, f := range []struct {
		name string
		v    float64
	}{{"Loss", p.Loss}, {"Duplicate", p.Duplicate}, {"Reorder", p.Reorder}, {"Corrupt", p.Corrupt}} {
		if !(f.v >= 0 && f.v <= 1) {
			return fmt.Errorf("%w: %s is %v, give a probability from 0 to 1", ErrPlan, f.name, f.v)
		}
	}
	for _, f := range []struct {
		name string
		v    int64
	}{{"Hold", int64(p.Hold)}, {"Delay", int64(p.Delay)}, {"Jitter", int64(p.Jitter)}, {"Bandwidth", p.Bandwidth},
		{"PauseEvery", int64(p.PauseEvery)}, {"PauseFor", int64(p.PauseFor)}} {
		if f.v < 0 {
			return fmt.Errorf("%w: %s is negative", ErrPlan, f.name)
		}
	}
	if (p.PauseEvery == 0) != (p.PauseFor == 0) {
		return fmt.Errorf("%w: PauseEvery and PauseFor go together", ErrPlan)
	}
	return nil
}

// Faults counts what a plan did to the frames of one direction.
type Faults struct {
	Frames     uint64 // frames that the plan was asked about
	Lost       uint64
	Duplicated uint64
	Reordered  uint64
	Corrupted  uint64
	Held       uint64 // late for any reason: delay, jitter, bandwidth, pause, reorder
	Overflow   uint64 // dropped, or (Inject) sent too early, because a queue was full
}

// fate is what becomes of one frame. Instants are on the owner's clock;
// 0 means at once.
type fate struct {
	lost, corrupt, dup bool
	due, dupDue        int64
}

// dice draws fates. One owner.
type dice struct {
	plan    Plan
	perfect bool // plan is the zero Plan
	rng     rand.PCG
	last    int64 // when the last frame in order is due; 0: no later than now
	busy    int64 // when the wire has sent all that it was given
	pause   int64 // start of the pause at hand or to come; 0: not drawn yet
	counts  Faults
}

func newDice(plan Plan, seed uint64, stream int) dice {
	d := dice{rng: *rand.NewPCG(seed, uint64(stream)+1)}
	d.set(plan)
	return d
}

// set changes the plan; what is on the wire stays on it.
func (d *dice) set(p Plan) { d.plan, d.perfect, d.pause, d.busy = p, p == Plan{}, 0, 0 }

// chance is true with probability p.
func (d *dice) chance(p float64) bool {
	return p > 0 && float64(d.rng.Uint64()>>11)/(1<<53) < p
}

// within is uniform in [0, n), 0 for n <= 0. The tiny bias of the remainder
// does not matter here.
func (d *dice) within(n int64) int64 {
	if n <= 0 {
		return 0
	}
	return int64(d.rng.Uint64() % uint64(n))
}

// idle reports that every frame just arrives, so that no clock is needed.
func (d *dice) idle() bool { return d.perfect && d.last == 0 }

// draw decides about a frame of n bytes that is sent now.
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
	f.due = d.held(now, due)
	if f.dup = d.chance(d.plan.Duplicate); f.dup {
		d.counts.Duplicated++
		f.dupDue = d.held(now, due)
	}
	return f
}

// inOrder is when a frame arrives if it keeps its place in the line.
func (d *dice) inOrder(now int64, n int) int64 {
	due := now
	if d.plan.Bandwidth > 0 {
		d.busy = max(d.busy, now) + int64(n)*8*int64(time.Second)/d.plan.Bandwidth
		due = d.busy
	}
	due += int64(d.plan.Delay) + d.within(int64(d.plan.Jitter))
	due = max(d.afterPause(due), d.last)
	if d.last = due; due <= now {
		d.last = 0
	}
	return due
}

// held is when the frame that is due in order then really arrives: later if
// the dice say so; 0 for at once.
func (d *dice) held(now, due int64) int64 {
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

// afterPause moves an arrival that falls into a pause to its end. Pauses
// begin PauseEvery/2 to PauseEvery*3/2 after the end of the one before.
func (d *dice) afterPause(due int64) int64 {
	every, length := int64(d.plan.PauseEvery), int64(d.plan.PauseFor)
	if every == 0 {
		return due
	}
	gap := func() int64 { return every/2 + d.within(every) }
	if d.pause == 0 || due-d.pause > 1000*(every+length) {
		d.pause = due + gap() // a long silence is not replayed pause by pause
	}
	for due >= d.pause+length {
		d.pause += length + gap()
	}
	if due >= d.pause {
		return d.pause + length
	}
	return due
}

// corrupt flips 1 to 3 bits behind the Ethernet header. A CRC-32 notices any
// three wrong bits at these lengths, so a corrupted frame never passes for a
// good one by chance: at most a field that the ICRC leaves out has changed.
func (d *dice) corrupt(b []byte) {
	if len(b) <= headerLen {
		return
	}
	for range 1 + d.within(3) {
		bit := d.within(int64(len(b)-headerLen) * 8)
		b[headerLen+int(bit/8)] ^= 1 << (bit % 8)
	}
}

// obey carries out a filter's decision; Pass leaves it to the plan.
func (d *dice) obey(a Action, now int64, n int) (f fate) {
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

// hold is the bound by which a reordered frame is late.
func (d *dice) hold() int64 {
	if d.plan.Hold == 0 {
		return int64(DefaultHold)
	}
	return int64(d.plan.Hold)
}
