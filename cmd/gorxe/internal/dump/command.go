package dump

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/device"
	"github.com/gorxe/gorxe/internal/dump"
)

const maxCount = 1_000_000_000

type flags struct {
	json  bool
	quiet bool
	save  string
	count cli.Int

	classes device.ClassMap
	confine device.Confinement
}

// Command returns the command "gorxe dump".
func Command() *cobra.Command {
	f := &flags{count: cli.Int{Min: 1, Max: maxCount}}
	cmd := &cobra.Command{
		Use:   "dump [IFACE | FILE]",
		Short: "Print RoCEv2 packets and check their ICRCs",
		Long: `Print the RoCEv2 packets of a capture file (pcap or pcapng, optionally gzipped; - for
stdin) or of an interface, one line each, and check their ICRCs. Without an argument
dump captures on all interfaces. Capturing on interfaces needs root or CAP_NET_RAW;
dump drops its privileges when the capture has started.

The first column is the number of the frame in the file, or since the capture
started. Times are relative to the first frame.

The traffic class of a packet is printed if it is not 0, for example "class 5 dscp 40".
It follows from the DSCP and the priority in the VLAN tag (see --class-map).

A selective acknowledgment, which gorxe peers send after a loss, is printed as the
PSNs that the receiver holds ("held") and the number of packets that it received
more than once ("dup").

A capture on an interface shows packets of the kernel's rxe driver and packets that
are forwarded to other guests, namespaces or hosts. It does not show the packets that
an AF_XDP program such as 'gorxe up' receives or sends on the same interface, in
native or generic mode: they bypass the kernel's packet sockets. Capture at the other
end of the veth pair, on the bridge, or on the remote host instead.`,
		Example: `  # packets of a capture file
  gorxe dump rc_write.pcap

  # opcodes of packets with a bad ICRC
  gorxe dump --json rc_write.pcap | jq -r 'select(.icrc == "bad") | .opcode'

  # 100 packets from an interface, also written to a file for Wireshark
  gorxe dump -c 100 -w roce.pcapng eth0

  # packets on another host
  ssh host tcpdump -i eth0 -U -w - udp port 4791 | gorxe dump -`,
		Args: cli.Named("[IFACE|FILE]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			arg := ""
			if len(args) > 0 {
				arg = args[0]
			}
			return f.run(cmd.Context(), arg, cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	fs := cmd.Flags()
	cli.JSONVar(fs, &f.json, "print one line of JSON for each packet")
	fs.StringVarP(&f.save, "write", "w", "",
		"write the RoCEv2 frames to a pcapng file (- for stdout, which replaces the text)")
	fs.BoolVarP(&f.quiet, "quiet", "q", false, "print only the summary")
	fs.VarP(&f.count, "count", "c",
		"stop after this number of RoCEv2 packets (default: at the end or Ctrl-C)")
	f.classes.Register(fs)
	f.confine.Register(fs, device.DefaultUser)
	cli.HideDefaults(fs, "count")
	return cmd
}

func (f *flags) run(ctx context.Context, arg string, stdin io.Reader, stdout,
	stderr io.Writer) (err error) {
	if f.json && f.save == dump.Stdio {
		return cli.Usagef("--json and -w - both write to stdout: use only one of them")
	}
	src, err := dump.Open(ctx, arg, stdin)
	if err != nil {
		return err
	}
	defer src.Close()
	if src.Live() && dump.Bypassed(arg) {
		fmt.Fprintf(stderr, "%s has an XDP program (gorxe up?). Packets that it handles are not visible here: "+
			"capture on the peer's interface.\n", arg)
	}
	lines := stdout
	var save *dump.Saver
	if f.save != "" {
		if save, err = dump.NewSaver(f.save, arg, stdout, src.Live()); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, save.Close()) }()
	}
	if f.quiet || f.save == dump.Stdio {
		lines = io.Discard
	}
	if src.Live() {
		if err := f.confine.ApplyAndLog(stderr); err != nil {
			return err
		}
	}
	out := bufio.NewWriter(lines)
	d := &dump.Dumper{Source: src, Save: save, JSON: f.json, Out: out, Limit: f.count.N,
		ClassMap: f.classes.Value()}
	err = errors.Join(d.Run(ctx), out.Flush())
	if err == nil && (!f.json || f.quiet) {
		d.WriteSummary(stderr)
	}
	return err
}
