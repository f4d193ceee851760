package sim

import (
	"math"

	"github.com/spf13/cobra"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/papers/kit"
	"github.com/gorxe/gorxe/papers/prefetch"
	"github.com/gorxe/gorxe/papers/prefetch/model"
	"github.com/gorxe/gorxe/qp/sched"
)

// prefetchFlags are the flags of "gorxe sim prefetch".
type prefetchFlags struct {
	window, qps          cli.Int
	cache, memory, light cli.Int
	chunk                cli.Size
	seed                 cli.Int
	plot                 string
	json, explain        bool
}

func prefetchCommand() *cobra.Command {
	c := model.DefaultConfig()
	entries := func(n int) cli.Int { return cli.Int{N: n, Min: 1, Max: model.MaxCache} }
	f := &prefetchFlags{
		window: cli.Int{N: c.Window, Min: 1, Max: sched.MaxWindow},
		qps:    cli.Int{N: c.MaxQPs, Min: 1, Max: model.MaxQPs},
		cache:  entries(c.Cache[model.QPC]), memory: entries(c.Memory), light: entries(c.LightQPC),
		chunk: cli.Size{Bytes: int64(c.Chunk), Min: int64(c.Message), Max: model.MaxChunk},
		seed:  cli.Int{N: int(c.Seed), Max: math.MaxInt},
	}
	cmd := &cobra.Command{
		Use:   "prefetch",
		Short: "Simulate the RNIC that prefetches, and reproduce figures 3 to 6 of its paper",
		Long: `Simulate the RNIC of "Toward Scalable RDMA Through Resource Prefetching" (Ma et al., IEEE CAL 2025):
bounded caches for QP contexts, WQEs, memory protection and translation entries, a 100 Gb/s link, and
PCIe with 128 Gb/s and 500 ns, driven by the scheduling and prefetch queues of gorxe's own engine. The
paper's numbers are beside the model's.

--explain lists what the paper states, what is assumed and why, and the results with other
assumptions.`,
		Example: `  gorxe sim prefetch
  gorxe sim prefetch --plot prefetch        # prefetch.svg and prefetch.png
  gorxe sim prefetch --window 4 --json
  gorxe sim prefetch --explain`,
		Args: cli.Named(),
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	fs := cmd.Flags()
	fs.Var(&f.window, "window", "prefetch window in QPs, by default from the paper's formula")
	fs.Var(&f.chunk, "chunk", "payload that a QP sends in a turn")
	fs.Var(&f.qps, "qps", "largest number of QPs in figures 3 and 4")
	fs.Var(&f.cache, "cache", "entries of each of the QPC, WQE, MPT and MTT caches")
	fs.Var(&f.memory, "memory-cache", "entries of the MPT and MTT caches in figure 5")
	fs.Var(&f.light, "light-cache", "entries of the QPC cache in figure 6")
	fs.Var(&f.seed, "seed", "seed of the random order in figure 3")
	fs.StringVar(&f.plot, "plot", "", "draw the figures into PREFIX.svg and PREFIX.png")
	cli.JSONVar(fs, &f.json, "print one JSON array")
	fs.BoolVar(&f.explain, "explain", false, "print the assumptions and alternatives instead")
	return cmd
}

// config returns the configuration of the model.
func (f *prefetchFlags) config(windowGiven bool) (*model.Config, error) {
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

// check checks combinations of flags.
func (f *prefetchFlags) check(plotGiven bool) error {
	switch {
	case f.json && f.explain:
		return cli.Usagef("--json and --explain: choose one")
	case plotGiven && f.explain:
		return cli.Usagef("--plot and --explain: choose one")
	case !plotGiven:
		return nil
	}
	return checkPlot(&f.plot)
}

func (f *prefetchFlags) run(cmd *cobra.Command) error {
	if err := f.check(cmd.Flags().Changed("plot")); err != nil {
		return err
	}
	c, err := f.config(cmd.Flags().Changed("window"))
	if err != nil {
		return err
	}
	ctx, stdout, stderr := cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr()
	if f.explain {
		return prefetch.Explain(ctx, c, stdout, stderr)
	}
	r, err := prefetch.Run(ctx, c, stderr)
	if err != nil {
		return err
	}
	return kit.Print(r, f.json, f.plot, stdout, stderr)
}
