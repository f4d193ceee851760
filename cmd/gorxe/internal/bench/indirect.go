package bench

import (
	"context"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/papers/indirect"
)

func indirectCommand() *cobra.Command {
	c := indirect.DefaultConfig()
	transfers := cli.Int{N: c.Transfers, Min: 1, Max: 1 << 20}
	size := cli.Size{Bytes: int64(c.Size), Min: indirect.MinSize, Max: indirect.MaxSize}
	timeout := cli.Duration{D: c.Timeout, Min: 10 * time.Microsecond, Max: time.Second}
	rate := cli.Int{N: c.Rate, Max: 1 << 20}
	pings := cli.Duration{D: c.PingInterval, Max: time.Second}
	cmd := &cobra.Command{
		Use:   "indirect",
		Short: "Repeat the dynamic RDMA paper's experiments: indirect transfers against direct ones",
		Long: `Make 800 WRITEs of 128 KiB in a row. With the dynamic method, a transfer whose request is refused or
unanswered goes into the peer's indirect buffer at once; with the traditional one it waits and asks
again. Meanwhile registrations fail (frp) or frames are lost (lfp) with the given probability in
percent, or both, or three pings run beside packets of 256, 512 or 1024 bytes.

Both methods meet the same faults, drawn from a seed, and alternate round by round. Values are medians
of the total time; the paper's ratio is beside the measured one. On a veth pair (as root) the transfers
run in real time over AF_XDP. With --link memory they run in virtual time, where only the link takes
time: the figures are the same on any machine.

Experiments: ` + strings.Join(indirect.Names(), ", ") + `.`,
		Example: `  sudo gorxe bench indirect
  sudo gorxe bench indirect --only frp_lfp_10 --rounds 5 --json
  gorxe bench indirect --link memory --plot indirect.svg`,
		Args: cli.Named(),
	}
	f := newFlags(cmd, &c.Options, 100, bothPlots)
	f.addOnly("measure only these experiments")
	f.addLink("veth (AF_XDP on a veth pair) or memory")
	f.addMode(&c.Mode)
	fs := cmd.Flags()
	fs.Var(&transfers, "transfers", "transfers per measurement")
	fs.Var(&size, "size", "bytes of a transfer")
	fs.Var(&timeout, "timeout", "time after which a request is repeated")
	fs.Var(&rate, "rate", "rate of the link in each direction, Mbit/s; 0: unlimited")
	fs.Var(&pings, "ping-interval",
		"interval of each of the three pings; 0: the next one follows the reply (ping -f)")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c.Transfers, c.Size, c.Timeout = transfers.N, size.Int(), timeout.D
		c.Rate, c.PingInterval = rate.N, pings.D
		c.Fallback = !fs.Changed("link")
		return execute(cmd, f,
			func(ctx context.Context, stderr io.Writer) (*indirect.Report, error) {
				return indirect.Run(ctx, c, stderr)
			})
	}
	return cmd
}
