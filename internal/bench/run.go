package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gorxe/gorxe/papers/kit"
)

// maxWarmup limits the warm-up of a measurement. The first use of a port's memory is slow in some
// virtual machines (docs/performance.md), so it is longer than the measurement, if that is short.
const maxWarmup = 100 * time.Millisecond

// bench is a run.
type bench struct {
	Config
	sides    [2]*side // the first one sends
	figures  []figure
	softirqs kit.Softirqs

	datapaths []string
	samples   map[string]map[string][]sample // by figure and lane; one per round
	starved   int                            // unreliable samples
}

var sideNames = [2]string{"A", "B"}

// rareRounds is the number of rounds of which a figure with rare events is measured in one, and the
// factor by which this measurement is longer. It is odd, so that the order of the lanes changes.
const rareRounds = 5

// in reports whether the figure is measured in a round.
func (f *figure) in(round int) bool { return !f.rare || round%rareRounds == 0 }

// durationOf returns the duration of a measurement for the figure.
func (b *bench) durationOf(f *figure) time.Duration {
	if f.rare {
		return rareRounds * b.Duration
	}
	return b.Duration
}

// steps returns the number of measurements.
func (b *bench) steps() (n int) {
	for round := range b.Rounds {
		for i := range b.figures {
			if b.figures[i].in(round) {
				n += len(b.figures[i].lanes)
			}
		}
	}
	return n
}

// run measures all figures, round by round. It calls step before each measurement.
func (b *bench) run(ctx context.Context, step func(figure, lane string)) error {
	b.samples = map[string]map[string][]sample{}
	for i := range b.figures {
		b.samples[b.figures[i].name] = map[string][]sample{}
	}
	for round := range b.Rounds {
		for i := range b.figures {
			f := &b.figures[i]
			if !f.in(round) {
				continue
			}
			for _, l := range kit.Alternate(f.lanes, round) {
				step(f.name, l.name)
				s, err := b.repeat(ctx, f, &l, round)
				if err != nil {
					return fmt.Errorf("%s of %s: %w", f.name, l.name, err)
				}
				b.samples[f.name][l.name] = append(b.samples[f.name][l.name], s)
			}
		}
	}
	return nil
}

// maxTries is how often a measurement is made in which a side got too little CPU time.
const maxTries = 3

// repeat repeats a measurement in which a side got too little CPU time, and returns the longest
// one.
func (b *bench) repeat(ctx context.Context, f *figure, l *lane, round int) (
	best sample, err error) {
	for range maxTries {
		var s sample
		if s, err = b.measure(ctx, f, l, round); err != nil && !errors.Is(err, kit.ErrIdle) {
			return s, err
		}
		if s.elapsed > best.elapsed {
			best = s
		}
		if best.elapsed >= b.durationOf(f)/2 {
			return best, nil
		}
	}
	if best.elapsed > 0 {
		b.starved++
		err = nil
	}
	return best, err
}

// measure measures one lane of a figure.
func (b *bench) measure(ctx context.Context, f *figure, l *lane, round int) (sample, error) {
	d := b.durationOf(f)
	passive := spec{
		Kind: l.kind, Test: f.test, Size: f.size, MTU: f.mtu, Spin: f.spin, Loss: l.loss,
		Seed: uint64(round + 1), Warmup: min(maxWarmup, d+d/4), Duration: d,
		Transport: b.Transport, Op: cmp.Or(l.op, opWrite), Port: l.port,
	}
	active := passive
	active.Active = true
	// The steps are those of the protocol; see request. Each call needs the success of the
	// previous one.
	var err error
	call := func(s *side, q request) (a reply) {
		if err == nil {
			a, err = s.call(ctx, q)
		}
		return a
	}
	sender, receiver := b.sides[0], b.sides[1]
	helloB := call(receiver, request{Do: doPrepare, Spec: &passive}).Hello
	helloA := call(sender, request{Do: doPrepare, Spec: &active}).Hello
	before := b.softirqs.Time()
	call(receiver, request{Do: doStart, Peer: helloA})
	outcomeA := call(sender, request{Do: doRun, Peer: helloB}).Outcome
	outcomeB := call(receiver, request{Do: doStop}).Outcome
	softirq := b.softirqs.Time() - before
	call(sender, request{Do: doStop})
	if err != nil {
		return sample{}, err
	}
	if l.kind == kindGorxe && !slices.Contains(b.datapaths, helloA.Datapath) {
		b.datapaths = append(b.datapaths, helloA.Datapath)
	}
	return f.sample(&passive, outcomeA, outcomeB, softirq)
}
