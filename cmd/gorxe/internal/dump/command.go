package dump

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/xdp"
)

const maxCount = 1_000_000_000

type flags struct {
	json  bool
	quiet bool
	save  string
	count cli.Int
}

// Command is "gorxe dump".
func Command() *cobra.Command {
	f := &flags{count: cli.Int{Min: 1, Max: maxCount}}
	cmd := &cobra.Command{
		Use:   "dump [IFACE | FILE]",
		Short: "Show RoCEv2 packets, one line each, and check their ICRCs",
		Long: `Show the RoCEv2 packets of a capture file (pcap or pcapng, gzip or not, - for stdin) or of an interface, one line
each, and check the ICRC of each. Without an argument it listens on all interfaces; listening needs root.

The first column is the frame's number in the file, or since listening began. Times count from the first frame.

What an interface shows: packets of the kernel's rxe, and any that pass through to another guest, namespace or host.
It does not show what an AF_XDP program such as 'gorxe up' receives or sends on that same interface, in native and
in generic mode alike: those packets bypass the place in the kernel where listeners sit. Listen at the other end of the
veth pair, on the bridge, or on the far host.`,
		Example: `  # what is in a capture
  gorxe dump rc_write.pcap

  # opcodes of the packets with a bad ICRC
  gorxe dump --json rc_write.pcap | jq -r 'select(.icrc == "bad") | .opcode'

  # 100 packets off an interface, kept for Wireshark
  gorxe dump -c 100 -w roce.pcapng eth0

  # off another host
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
	fs.BoolVar(&f.json, "json", false, "print one line of JSON a packet")
	fs.StringVarP(&f.save, "write", "w", "", "write the RoCEv2 frames to this file, as pcapng (- for stdout, instead of lines)")
	fs.BoolVarP(&f.quiet, "quiet", "q", false, "print no packets, only the summary")
	fs.VarP(&f.count, "count", "c", "stop after so many RoCEv2 packets (default: at the end, or Ctrl-C)")
	fs.Lookup("count").DefValue = ""
	return cmd
}

// run opens what frames come from and go to, dumps, and closes.
func (f *flags) run(ctx context.Context, arg string, stdin io.Reader, stdout, stderr io.Writer) (err error) {
	src, err := open(ctx, arg, stdin)
	if err != nil {
		return err
	}
	defer src.Close()
	if src.live() && arg != "" {
		noteBypass(stderr, arg)
	}
	lines := stdout
	var save *saver
	if f.save != "" {
		if save, err = newSaver(f.save, arg, stdout, src.live()); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, save.Close()) }()
		if f.save == stdio {
			lines = io.Discard
		}
	}
	if f.quiet {
		lines = io.Discard
	}
	out := bufio.NewWriter(lines)
	d := &dumper{src: src, save: save, json: f.json, out: out, limit: f.count.N}
	err = errors.Join(d.run(ctx), out.Flush())
	if err == nil && (!f.json || f.quiet) {
		d.sum.write(stderr, src.lost())
	}
	return err
}

// noteBypass says so if somebody's XDP program sits on the interface: an empty
// dump is otherwise a riddle.
func noteBypass(stderr io.Writer, iface string) {
	if d, err := xdp.Probe(iface, 0); err == nil && d.Program != 0 {
		fmt.Fprintf(stderr, "%s carries an XDP program (gorxe up?): what that takes and sends is not seen here, but at the link's other end\n", iface)
	}
}

// dumper is the loop from frames to lines.
type dumper struct {
	src   source
	save  *saver // nil: none
	json  bool
	out   *bufio.Writer
	limit int // RoCE packets; 0: none

	decoder frame.Decoder
	sum     summary
}

func (d *dumper) run(ctx context.Context) error {
	p := new(bth.Packet)
	for n := 1; ; n++ {
		c, err := d.src.next()
		if err == io.EOF || err != nil && ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		if n == 1 {
			d.sum.start = c.info.Timestamp
		}
		*p = bth.Packet{}
		reason := d.decoder.Decode(c.frame, p)
		d.sum.count(c, reason)
		if !shown(reason) {
			continue
		}
		if err := d.show(n, c, p, reason); err != nil {
			return err
		}
		if d.sum.roce == d.limit {
			return nil
		}
	}
}

// show prints and saves one frame that is RoCE, sound or not.
func (d *dumper) show(n int, c *capture, p *bth.Packet, reason frame.Reason) error {
	if d.save != nil {
		if err := d.save.write(c); err != nil {
			return err
		}
	}
	var err error
	if d.json {
		if p.BTH == nil {
			return nil // no field of the line could be filled in
		}
		err = cli.JSON(d.out, newRecord(n, c, p, reason))
	} else {
		err = writeLine(d.out, n, c.info.Timestamp.Sub(d.sum.start), p, reason)
	}
	if err == nil && d.src.live() {
		err = d.out.Flush()
	}
	return err
}

// shown reports whether a frame is RoCE as far as one can tell.
func shown(r frame.Reason) bool {
	switch r {
	case frame.ReasonNotRoCE, frame.ReasonShort, frame.ReasonVLAN, frame.ReasonIPOptions, frame.ReasonFragment:
		return false
	}
	return true
}

// open finds out what arg means: a file, an interface, stdin, or all interfaces.
func open(ctx context.Context, arg string, stdin io.Reader) (source, error) {
	switch arg {
	case "":
		return listen(ctx, nil)
	case stdio:
		return openFile("stdin", io.NopCloser(stdin))
	}
	file, err := os.Open(arg)
	if err == nil {
		if st, err := file.Stat(); err == nil && st.IsDir() {
			file.Close()
			return nil, fmt.Errorf("%s is a directory: give a capture file or an interface", arg)
		}
		return openFile(arg, file)
	}
	if !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	intf, err := findInterface(arg)
	if err != nil {
		return nil, err
	}
	return listen(ctx, intf)
}
