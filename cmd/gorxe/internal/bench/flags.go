package bench

import (
	"context"
	"io"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/papers/kit"
	"github.com/gorxe/gorxe/xdp"
)

// Limits of --duration.
const (
	minDuration = 10 * time.Millisecond
	maxDuration = time.Minute
)

// flags are the flags that the benchmarks share. Their defaults are the values of the options, and
// execute stores their values there.
type flags struct {
	fs       *pflag.FlagSet
	options  *kit.Options
	rounds   cli.Int
	duration *cli.Duration
	link     *cli.Choice
	mode     *cli.Choice
	xdpMode  *xdp.Mode
	json     bool
}

// newFlags adds the flags that all benchmarks have.
func newFlags(cmd *cobra.Command, o *kit.Options, maxRounds int, plotUsage string) *flags {
	f := &flags{fs: cmd.Flags(), options: o, rounds: cli.Int{N: o.Rounds, Min: 1, Max: maxRounds}}
	f.fs.Var(&f.rounds, "rounds", "rounds, each measuring everything once")
	f.fs.StringVar(&o.Plot, "plot", "", plotUsage)
	f.fs.IntSliceVar(&o.CPUs, "cpus", nil, "two CPUs to pin the sides to (default: the first two)")
	cli.JSONVar(f.fs, &f.json, "print one JSON array")
	return f
}

// Usage texts of --plot.
const (
	onePlot   = "draw the results into this file, .svg or .png"
	bothPlots = "draw the results into this file, .svg or .png; a name with another ending gives both"
)

func (f *flags) addDuration(usage string) {
	f.duration = &cli.Duration{D: f.options.Duration, Min: minDuration, Max: maxDuration}
	f.fs.Var(f.duration, "duration", usage)
}

func (f *flags) addOnly(usage string) { f.fs.StringSliceVar(&f.options.Only, "only", nil, usage) }

func (f *flags) addLink(usage string) {
	f.link = &cli.Choice{Value: f.options.Link, Words: []string{kit.Veth, kit.Memory}}
	f.fs.Var(f.link, "link", usage)
}

func (f *flags) addMode(mode *xdp.Mode) {
	words := []string{xdp.Auto.String(), xdp.Native.String(), xdp.Generic.String()}
	f.mode, f.xdpMode = &cli.Choice{Value: mode.String(), Words: words}, mode
	f.fs.Var(f.mode, "mode", "XDP mode: auto (generic on veth), native or generic")
}

// apply stores the values of the flags.
func (f *flags) apply() (err error) {
	f.options.Rounds = f.rounds.N
	if f.duration != nil {
		f.options.Duration = f.duration.D
	}
	if f.link != nil {
		f.options.Link = f.link.Value
	}
	if f.mode != nil {
		if f.options.Link == kit.Memory && f.fs.Changed("mode") {
			return cli.Usagef("--mode is about AF_XDP: it cannot be used with a link in memory")
		}
		*f.xdpMode, err = xdp.ParseMode(f.mode.Value)
	}
	return cli.Usage(err)
}

// execute runs a benchmark and prints its report.
func execute[R kit.Report](
	cmd *cobra.Command, f *flags, run func(ctx context.Context, stderr io.Writer) (R, error),
) error {
	if err := f.apply(); err != nil {
		return err
	}
	stderr := cmd.ErrOrStderr()
	r, err := run(cmd.Context(), stderr)
	if err != nil {
		return err
	}
	return kit.Print(r, f.json, f.options.Plot, cmd.OutOrStdout(), stderr)
}
