package bench

import (
	"context"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gorxe/gorxe/internal/bench"
	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/papers/kit"
)

// Command returns the command "gorxe bench".
func Command() *cobra.Command {
	c := bench.DefaultConfig()
	var memory bool
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure gorxe, bare AF_XDP, and TCP and UDP of the kernel on a veth pair",
		Long: `Measure message rate, bandwidth, latency and goodput under loss of gorxe, side by side with bare
AF_XDP frames of the same size and with TCP and UDP of the kernel: in one run, on one veth pair
between two namespaces, with one process and one CPU for each side.

The competitors alternate, round by round. Values are medians; compare ratios between machines.
Without root or AF_XDP, gorxe and bare frames are measured on an in-memory link.

Figures: ` + strings.Join(bench.Names(), ", ") + `.`,
		Example: `  sudo gorxe bench
  sudo gorxe bench --plot bench.svg
  sudo gorxe bench --only write_lat_8B --rounds 100 --json`,
		Args: cli.Named(),
	}
	f := newFlags(cmd, &c.Options, 1000, onePlot)
	f.addDuration("duration of a measurement; lossy figures take five times as long, in every fifth round")
	f.addOnly("measure only these figures")
	f.addMode(&c.Mode)
	fs := cmd.Flags()
	c.Transport.Register(fs)
	fs.StringSliceVar(&c.Ports, "ports", c.Ports, "ports of gorxe to measure on the veth pair: a list of "+
		strings.Join(bench.Ports(), ", "))
	fs.BoolVar(&memory, "memory", false, "use the in-memory link even as root")
	fs.StringVar(&c.Profile, "cpuprofile", "",
		"write CPU profiles of gorxe and of bare frames on a veth pair into files with this prefix")
	_ = fs.MarkHidden("cpuprofile") // for make pgo
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if memory {
			if fs.Changed("mode") {
				return cli.Usagef("--memory and --mode exclude each other: choose one of them")
			}
			c.Link = kit.Memory
		}
		return execute(cmd, f, func(ctx context.Context, stderr io.Writer) (*bench.Report, error) {
			return bench.Run(ctx, c, stderr)
		})
	}
	cmd.AddCommand(sideCommand(), copySideCommand(), flowCommand(), indirectCommand(), rftpCommand(), runCommand(), callsCommand(), scaleCommand(),
		statusByteCommand())
	return cmd
}

// sideCommand is the hidden command of the child processes, one for each side.
func sideCommand() *cobra.Command {
	var o bench.SideOptions
	cmd := &cobra.Command{
		Use:    bench.SideCommand,
		Hidden: true,
		Args:   cli.Named(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.ServeSide(cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
	o.AddFlags(cmd.Flags())
	return cmd
}
