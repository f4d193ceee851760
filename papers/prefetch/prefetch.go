package prefetch

import (
	"context"
	"io"
	"slices"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/papers/kit"
	"github.com/gorxe/gorxe/papers/prefetch/model"
)

// Run simulates the paper's figures. It shows its progress on stderr if that is a terminal.
func Run(ctx context.Context, c *model.Config, stderr io.Writer) (*Report, error) {
	bar := kit.ProgressBar(stderr, c.Steps())
	defer func() { _ = bar.Exit() }()
	points, err := c.Run(func(what string) error {
		if ctx.Err() != nil {
			return kit.Ended(ctx)
		}
		bar.Describe(what)
		return bar.Add(1)
	})
	if err != nil {
		return nil, err
	}
	return &Report{Points: points, config: c}, nil
}

// Report is the outcome of a simulation. It implements kit.Report.
type Report struct {
	Points []model.Point

	config *model.Config
}

// Warn implements kit.Report. Simulations need no warnings.
func (r *Report) Warn(io.Writer) {}

// digits is the number of decimals in JSON.
const digits = 3

// JSON implements kit.Report.
func (r *Report) JSON() any {
	rounded := slices.Clone(r.Points)
	for i := range rounded {
		rounded[i].Y = cli.Round(rounded[i].Y, digits)
	}
	return rounded
}
