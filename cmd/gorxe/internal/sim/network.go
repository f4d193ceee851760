package sim

import (
	"math"

	"github.com/spf13/cobra"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/netsim/figures"
	"github.com/gorxe/gorxe/papers/kit"
)

// networkFlags are the flags of "gorxe sim network".
type networkFlags struct {
	seed cli.Int
	only []string
	plot string
	json bool
}

func networkCommand() *cobra.Command {
	f := &networkFlags{seed: cli.Int{N: 1, Max: math.MaxInt}}
	cmd := &cobra.Command{
		Use:   "network",
		Short: "Simulate gorxe on lossy, long and shared networks",
		Long: `Simulate gorxe devices on networks that lose, delay and reorder packets, and behind a switch whose
output they share with each other and with TCP. The devices are those of the library and exchange
real packets; only time is virtual. Every figure is printed with its target.

Figures ending in _sr use selective repeat, those in _gbn go-back-N, as with peers that are not
gorxe. wr_ is RDMA WRITE, rd_ is RDMA READ. The whole table takes a minute or two.`,
		Example: `  gorxe sim network
  gorxe sim network --only wr_25g_100us_loss1_sr,wr_25g_100us_loss1_gbn
  gorxe sim network --json --seed 7
  gorxe sim network --plot network          # network.svg and network.png`,
		Args: cli.Named(),
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	fs := cmd.Flags()
	fs.Var(&f.seed, "seed", "seed of all random faults")
	fs.StringSliceVar(&f.only, "only", nil, "names of the figures to measure (default: all)")
	fs.StringVar(&f.plot, "plot", "", "draw curves into PREFIX.svg and PREFIX.png")
	cli.JSONVar(fs, &f.json, "print one JSON array")
	return cmd
}

func (f *networkFlags) run(cmd *cobra.Command) error {
	if cmd.Flags().Changed("plot") {
		if err := checkPlot(&f.plot); err != nil {
			return err
		}
	}
	o := figures.Options{Seed: uint64(f.seed.N), Only: f.only, Plot: f.plot}
	r, err := figures.Run(cmd.Context(), o, cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	return kit.Print(r, f.json, f.plot, cmd.OutOrStdout(), cmd.ErrOrStderr())
}
