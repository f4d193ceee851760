package bench

import (
	"math"

	"github.com/spf13/cobra"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/papers/kit"
	"github.com/gorxe/gorxe/papers/rftp"
)

func rftpCommand() *cobra.Command {
	seed := cli.Int{N: 1, Max: math.MaxInt}
	var o rftp.Options
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "rftp",
		Short: "Simulate the RFTP paper's transfers over a long and a short path",
		Long: `Simulate transfers of blocks from memory to memory, with the default credits and with those of the
RFTP paper, over 10 Gb/s with a round trip of 49 ms (wan_) and over 25 Gb/s with 25 us (lan_), with 1
and 8 streams (_8). ramp_ is the time to the full rate. fio_ compares WRITE, SEND and READ with 1 and
64 operations outstanding. Devices exchange real packets; only time is virtual, so the figures are the
same on every machine. All figures take several minutes.`,
		Example: `  gorxe bench rftp
  gorxe bench rftp --only wan_default,ramp_ms --json
  gorxe bench rftp --plot rftp.svg`,
		Args: cli.Named(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Seed = uint64(seed.N)
			r, err := rftp.Run(cmd.Context(), o, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			return kit.Print(r, asJSON, o.Plot, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	fs := cmd.Flags()
	fs.Var(&seed, "seed", "seed of losses and connections")
	fs.StringSliceVar(&o.Only, "only", nil, "names of the figures to measure (default: all)")
	fs.StringVar(&o.Plot, "plot", "", bothPlots)
	cli.JSONVar(fs, &asJSON, "print one JSON array")
	return cmd
}
