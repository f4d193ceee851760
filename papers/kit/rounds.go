package kit

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"github.com/gorxe/gorxe/internal/cli"
)

// ProgressBar returns a progress bar of so many steps. It is invisible if w is not a terminal.
func ProgressBar(w io.Writer, steps int) *progressbar.ProgressBar {
	file, ok := w.(*os.File)
	return progressbar.NewOptions(steps,
		progressbar.OptionSetWriter(w),
		progressbar.OptionSetVisibility(ok && term.IsTerminal(int(file.Fd()))),
		progressbar.OptionShowCount(),
		progressbar.OptionSetPredictTime(true),
		progressbar.OptionClearOnFinish(),
	)
}

// Step is one measurement of one side of an experiment. Every round runs it once.
type Step struct {
	Experiment, Side string
	Run              func(ctx context.Context, round int) error
}

// Rounds runs experiments, each a list of steps, round by round. The steps of an experiment follow
// each other and change their order every other round, so that drifts of the machine's speed affect
// all sides alike.
func Rounds(ctx context.Context, rounds int, experiments [][]Step, stderr io.Writer) error {
	total := 0
	for _, steps := range experiments {
		total += len(steps) * rounds
	}
	bar := ProgressBar(stderr, total)
	defer func() { _ = bar.Exit() }()
	for round := range rounds {
		for _, steps := range experiments {
			for _, step := range Alternate(steps, round) {
				if ctx.Err() != nil {
					return Ended(ctx)
				}
				bar.Describe(step.Experiment + " " + step.Side)
				if err := step.Run(ctx, round); err != nil {
					if cli.Interrupted(ctx) {
						return cli.ErrInterrupted
					}
					return fmt.Errorf("%s of %s: %w", step.Experiment, step.Side, err)
				}
				_ = bar.Add(1)
			}
		}
	}
	return nil
}

// Alternate returns a copy of list, in reverse order in every other round.
func Alternate[T any](list []T, round int) []T {
	list = slices.Clone(list)
	if round%2 == 1 {
		slices.Reverse(list)
	}
	return list
}

// Ended returns the error for a benchmark whose context has ended.
func Ended(ctx context.Context) error {
	if cli.Interrupted(ctx) {
		return cli.ErrInterrupted
	}
	return context.Cause(ctx)
}
