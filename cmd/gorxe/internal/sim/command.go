package sim

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/papers/kit"
	"github.com/gorxe/gorxe/papers/prefetch/model"
	"github.com/gorxe/gorxe/qp/sched"
)

// Command is "gorxe sim".
func Command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "sim",
		Short: "Run models of RDMA hardware beside what their papers report",
		Long: `Run a model of RDMA hardware, and set its results beside those of the paper that describes it. Nothing is measured on
this machine: the same configuration gives the same numbers everywhere.`,
		Example: "  gorxe sim prefetch",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return cli.Usagef("there is no model %q: choose prefetch", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newPrefetch())
	return cmd
}

// flags are what the user gave.
type flags struct {
	window, qps          cli.Int
	cache, memory, light cli.Int
	chunk                cli.Size
	seed                 cli.Int
	plot                 string
	json, explain        bool
}

func newPrefetch() *cobra.Command {
	c := model.DefaultConfig()
	entries := func(n int) cli.Int { return cli.Int{N: n, Min: 1, Max: model.MaxCache} }
	f := &flags{
		window: cli.Int{N: c.Window, Min: 1, Max: sched.MaxWindow},
		qps:    cli.Int{N: c.MaxQPs, Min: 1, Max: model.MaxQPs},
		cache:  entries(c.Cache[model.QPC]), memory: entries(c.Memory), light: entries(c.LightQPC),
		chunk: cli.Size{Bytes: int64(c.Chunk), Min: int64(c.Message), Max: model.MaxChunk},
		seed:  cli.Int{N: int(c.Seed), Max: math.MaxInt},
	}
	cmd := &cobra.Command{
		Use:   "prefetch",
		Short: "The RNIC that prefetches: figures 3 to 6 of its paper, reproduced",
		Long: `Simulate the RNIC of "Toward Scalable RDMA Through Resource Prefetching" (Ma et al., IEEE CAL 2025): bounded caches for QP
contexts, WQEs, memory protection and translation entries, a 100 Gb/s link, PCIe of 128 Gb/s and 500 ns, driven by the
scheduling and prefetch queues that gorxe's own engine runs. The paper's numbers stand beside the model's.

--explain tells what the paper states, what is assumed and why, and what other assumptions would give.`,
		Example: `  gorxe sim prefetch
  gorxe sim prefetch --plot prefetch        # prefetch.svg and prefetch.png
  gorxe sim prefetch --window 4 --json
  gorxe sim prefetch --explain`,
		Args: cli.Named(),
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	fs := cmd.Flags()
	fs.Var(&f.window, "window", "prefetch window in QPs; not given: by the paper's formula")
	fs.Var(&f.chunk, "chunk", "payload that a QP sends in a turn")
	fs.Var(&f.qps, "qps", "QPs at most, in figures 3 and 4")
	fs.Var(&f.cache, "cache", "entries of the QPC, WQE, MPT and MTT caches each")
	fs.Var(&f.memory, "memory-cache", "entries of the MPT and MTT caches in figure 5")
	fs.Var(&f.light, "light-cache", "entries of the QPC cache in figure 6")
	fs.Var(&f.seed, "seed", "seed of the random order in figure 3")
	fs.StringVar(&f.plot, "plot", "", "draw the figures into PREFIX.svg and PREFIX.png")
	fs.BoolVar(&f.json, "json", false, "print one JSON array")
	fs.BoolVar(&f.explain, "explain", false, "print assumptions, and what others would give, instead")
	return cmd
}

// config is what the flags ask for.
func (f *flags) config(windowGiven bool) (*model.Config, error) {
	c := model.DefaultConfig()
	for k := range model.Kinds {
		c.Cache[k] = f.cache.N
	}
	c.Memory, c.LightQPC, c.MaxQPs = f.memory.N, f.light.N, f.qps.N
	c.Chunk, c.Seed = f.chunk.Int(), uint64(f.seed.N)
	c.Window = max(1, c.Params.Window())
	if windowGiven {
		c.Window = f.window.N
	}
	return &c, cli.Usage(c.Check())
}

// check refuses what the flags' types cannot.
func (f *flags) check(plotGiven bool) error {
	switch {
	case f.json && f.explain:
		return cli.Usagef("--json and --explain: choose one")
	case plotGiven && f.explain:
		return cli.Usagef("--plot and --explain: choose one")
	case !plotGiven:
		return nil
	}
	if ext := kit.PlotFormat(f.plot); ext != "" { // both are drawn, whichever is named
		f.plot = f.plot[:len(f.plot)-len("."+ext)]
	}
	if base := filepath.Base(f.plot); f.plot == "" || strings.HasSuffix(f.plot, "/") || base == "." || base == ".." {
		return cli.Usagef("--plot: a prefix is missing, as in --plot prefetch")
	}
	return kit.CheckPlot(f.plot, true)
}

func (f *flags) run(cmd *cobra.Command) error {
	if err := f.check(cmd.Flags().Changed("plot")); err != nil {
		return err
	}
	c, err := f.config(cmd.Flags().Changed("window"))
	if err != nil {
		return err
	}
	if f.explain {
		return explain(cmd, c)
	}
	points, err := f.simulate(cmd, c)
	if err != nil {
		return err
	}
	err = f.report(cmd, c, points)
	if f.plot == "" {
		return err
	}
	return errors.Join(err, f.draw(cmd, c, points)) // last: what was computed is told, whatever becomes of the picture
}

func (f *flags) draw(cmd *cobra.Command, c *model.Config, points []model.Point) error {
	files, err := plotAll(f.plot, c.Figures(), points)
	if err == nil && !f.json {
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "\nPlots: %s\n", strings.Join(files, ", "))
	}
	return err
}

func (f *flags) report(cmd *cobra.Command, c *model.Config, points []model.Point) error {
	if !f.json {
		return report(cmd.OutOrStdout(), c, points)
	}
	rounded := slices.Clone(points)
	for i := range rounded {
		rounded[i].Y = cli.Round(points[i].Y, digits)
	}
	return cli.JSON(cmd.OutOrStdout(), rounded)
}

func (f *flags) simulate(cmd *cobra.Command, c *model.Config) ([]model.Point, error) {
	bar := kit.Bar(cmd.ErrOrStderr(), c.Steps())
	defer func() { _ = bar.Exit() }()
	return c.Run(func(what string) error {
		if cli.Interrupted(cmd.Context()) {
			return cli.ErrInterrupted
		}
		bar.Describe(what)
		return bar.Add(1)
	})
}
