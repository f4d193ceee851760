package paper

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/papers/kit"
)

// Step is one measurement of one side of an experiment, made once a round.
type Step struct {
	Experiment, Side string
	Run              func(ctx context.Context, round int) error
}

// Rounds runs experiments, each a list of steps, round by round. The steps of an experiment stand beside each other and
// swap their order every other round, so that a machine whose speed drifts treats the sides alike.
func Rounds(ctx context.Context, rounds int, experiments [][]Step, stderr io.Writer) error {
	total := 0
	for _, steps := range experiments {
		total += len(steps) * rounds
	}
	bar := kit.Bar(stderr, total)
	defer func() { _ = bar.Exit() }()
	for round := range rounds {
		for _, steps := range experiments {
			turn := slices.Clone(steps)
			if round%2 == 1 {
				slices.Reverse(turn)
			}
			for i := range turn {
				if ctx.Err() != nil {
					return ended(ctx)
				}
				bar.Describe(turn[i].Experiment + " " + turn[i].Side)
				if err := turn[i].Run(ctx, round); err != nil {
					if cli.Interrupted(ctx) {
						return cli.ErrInterrupted
					}
					return fmt.Errorf("%s of %s: %w", turn[i].Experiment, turn[i].Side, err)
				}
				_ = bar.Add(1)
			}
		}
	}
	return nil
}

func ended(ctx context.Context) error {
	if cli.Interrupted(ctx) {
		return cli.ErrInterrupted
	}
	return context.Cause(ctx)
}
