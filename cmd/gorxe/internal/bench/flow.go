package bench

import (
	"context"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/papers/deterministic"
)

func flowCommand() *cobra.Command {
	c := deterministic.DefaultConfig()
	cmd := &cobra.Command{
		Use:   "flow",
		Short: "Repeat the deterministic RDMA paper's experiments: traffic classes and the flow scheduler",
		Long: `Repeat the experiments of Abaza et al., "RDMA-Based Deterministic Communication Architecture for
Autonomous Driving" (2023), with more of them: latency of the highest of three priorities, packet order,
a distributed neural network, preemption points, two rates, overload, and the cost of a lost packet.

The traffic classes of the engine are compared with no classes, with the scheduler of package
transport/flow alone, and with that scheduler and messages split every 64 KiB. These experiments run in
virtual time on a link of 978 Mb/s, which is Gigabit Ethernet without preamble, FCS and gap: the figures
are the same on any machine. The paper's figures are beside them.

overhead_* (what the scheduler adds to the latency of a message) and class7 (small messages of class 7
beside bulk traffic) are measured in real time, on a veth pair over AF_XDP (as root) or in memory. They are
no guarantee.

Experiments: ` + strings.Join(deterministic.Names(), ", ") + `.`,
		Example: `  gorxe bench flow --link memory
  sudo gorxe bench flow --plot flow.svg
  gorxe bench flow --only hp_latency_1MB,order_3x4 --json`,
		Args: cli.Named(),
	}
	f := newFlags(cmd, &c.Options, 100, bothPlots)
	f.addDuration("duration of a measurement of class7")
	f.addOnly("measure only these experiments")
	f.addLink("veth (AF_XDP on a veth pair) or memory, for real time")
	fs := cmd.Flags()
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c.Fallback = !fs.Changed("link")
		return execute(cmd, f,
			func(ctx context.Context, stderr io.Writer) (*deterministic.Report, error) {
				return deterministic.Run(ctx, c, stderr)
			})
	}
	return cmd
}
