package bench

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/papers/statusbyte"
)

func statusByteCommand() *cobra.Command {
	c := statusbyte.DefaultConfig()
	size := cli.Size{Bytes: int64(c.TraceSize), Min: 1, Max: statusbyte.MaxSize}
	cmd := &cobra.Command{
		Use:   "statusbyte",
		Short: "Repeat the status byte paper's experiments: status byte against sliding window",
		Long: fmt.Sprintf(`Repeat the experiments of Xiao et al., "Status-Byte-Assisted RDMA Transmission Mechanism for Optimizing
Multi-Task Video Streaming in Edge Computing" (Appl. Sci. 2024, 14, 7437): the status byte against the
sliding window, with three blocks, on a veth pair over AF_XDP or on an in-memory link. The paper's
figures are beside the measured ones.

The transports alternate, round by round. Values are medians, ratios are statusbyte/slidingwindow.

--trace DIR captures %d blocks of --trace-size bytes of either transport as the sender sees them. It
then measures, without a capture, what such a block costs each side: the time in which it works and
the time in which it polls for packets. A capture takes time itself: the order of the packets in the
pcap files is reliable, their times are not.

Experiments: %s.`, statusbyte.TraceBlocks, strings.Join(statusbyte.Groups(), ", ")),
		Example: `  sudo gorxe bench statusbyte --plot statusbyte.svg
  gorxe bench statusbyte --link memory --json
  sudo gorxe bench statusbyte --only throughput_256B --only sync_latency --rounds 11
  gorxe bench statusbyte --link memory --only throughput_256KiB --trace trace --trace-size 256KiB`,
		Args: cli.Named(),
	}
	f := newFlags(cmd, &c.Options, 100, bothPlots)
	f.addDuration("duration of a throughput measurement")
	f.addOnly("measure only these experiments, or these results")
	f.addLink("veth (AF_XDP on a veth pair, as root) or memory")
	fs := cmd.Flags()
	fs.StringVar(&c.TraceDir, "trace", "",
		"write captures of either transport into this directory, for 'gorxe dump', and print the cost of a block")
	fs.Var(&size, "trace-size", "size of the captured blocks, as in 256KiB")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if fs.Changed("trace-size") && c.TraceDir == "" {
			return cli.Usagef("--trace-size needs --trace")
		}
		c.TraceSize = size.Int()
		return execute(cmd, f,
			func(ctx context.Context, stderr io.Writer) (*statusbyte.Report, error) {
				return statusbyte.Run(ctx, c, stderr)
			})
	}
	return cmd
}
