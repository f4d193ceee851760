package scale

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// bench is a run: a world, and what its lanes measured.
type bench struct {
	w        *world
	lanes    []lane
	rounds   int
	burst    int
	duration time.Duration
	samples  map[lane][]sample
}

// run measures all lanes, round by round, every other round backwards.
func (b *bench) run(ctx context.Context, step func(l *lane)) error {
	defer quiet()()
	defer context.AfterFunc(ctx, func() { b.w.interrupted.Store(true) })()
	b.samples = map[lane][]sample{}
	for round := range b.rounds {
		lanes := slices.Clone(b.lanes)
		if round%2 == 1 {
			slices.Reverse(lanes)
		}
		for i := range lanes {
			if err := ctx.Err(); err != nil {
				return err
			}
			l := &lanes[i]
			step(l)
			if err := b.w.prefetch(l.prefetch); err != nil {
				return err
			}
			s, err := b.insist(l)
			if err != nil {
				return fmt.Errorf("%s: %w", l, err)
			}
			b.samples[*l] = append(b.samples[*l], s)
		}
	}
	return nil
}

// tries is how often a lane is measured that was left without CPU time.
const tries = 3

// insist measures a lane, again if nothing arrived.
func (b *bench) insist(l *lane) (s sample, err error) {
	for range tries {
		if s, err = b.w.measure(l, b.burst, b.duration/4, b.duration); !errors.Is(err, errNothing) {
			break
		}
	}
	return s, err
}
