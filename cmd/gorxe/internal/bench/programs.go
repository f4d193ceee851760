package bench

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/gorxe/gorxe/internal/bench/programs"
	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/papers/kit"
)

// runCommand is the command "gorxe bench run".
func runCommand() *cobra.Command {
	c := programs.DefaultConfig()
	rounds := cli.Int{N: c.Rounds, Min: 1, Max: maxRounds}
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Measure programs of libibverbs under 'gorxe run', beside 'gorxe perf'",
		Long: `Run pairs of perftest's programs (ib_write_bw, ib_write_lat) with 'gorxe run' on this
host, beside pairs of 'gorxe perf', on two loopback addresses with UDP sockets, and as
root also with AF_XDP on a veth pair (figures with _xdp). perftest must be installed.
Measure also how many calls are intercepted while data moves, how long such a call takes,
and the memory of an idle 'gorxe run'.

The sides alternate, round by round. Values are medians.

Figures: ` + strings.Join(programs.Names(), ", ") + `.`,
		Example: `  gorxe bench run
  gorxe bench run --only write_lat_8B,call_p50 --rounds 20 --json`,
		Args: cli.Named(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c.Rounds = rounds.N
			r, err := programs.Run(cmd.Context(), c, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			return kit.Print(r, asJSON, c.Plot, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	fs := cmd.Flags()
	fs.Var(&rounds, "rounds", "rounds, each measuring everything once")
	fs.StringSliceVar(&c.Only, "only", nil, "measure only these figures")
	fs.StringVar(&c.Plot, "plot", "", onePlot)
	cli.JSONVar(fs, &asJSON, "print one JSON array")
	return cmd
}

// callsCommand is the hidden command of a program that "gorxe bench run" runs with 'gorxe run'.
func callsCommand() *cobra.Command {
	return &cobra.Command{
		Use:    programs.CallCommand,
		Hidden: true,
		Args:   cli.Named(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return programs.Call(cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
}
