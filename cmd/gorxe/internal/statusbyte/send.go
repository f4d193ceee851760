package statusbyte

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/streams"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/statusbyte"
)

type sendFlags struct {
	shared
	firstDevice cli.Int
	cameras     cli.Int
	fps         cli.Int
	frame       string
	duration    cli.Duration
	changed     func(name string) bool // whether the user set a flag
}

// Bounds and defaults of the flags.
const (
	maxDevices  = 256
	maxFPS      = 1000
	defaultFPS  = 25
	maxFrame    = 256 << 20
	maxDuration = 24 * time.Hour
	connectTime = 10 * time.Second
)

func sendCommand() *cobra.Command {
	f := new(sendFlags)
	cmd := &cobra.Command{
		Use:   "send HOST [[N=]FILE...]",
		Short: "Send files, standard input or synthetic cameras to 'statusbyte recv'",
		Long: `Send files, standard input or synthetic cameras to 'statusbyte recv' on HOST over one
queue pair. Each file is a device. Devices are numbered from --device on, or with
N=FILE; - is standard input. A block is sent when it is full. Data of a pipe is sent
at the latest 20 ms after its first byte was read.

A signal ends the streams of pipes and cameras properly. The stream of a file that is
not complete has no end at the receiver, and the exit status is 1.

The receiver determines the number and size of the blocks. With --blocks and
--block-size the command fails if the receiver's values differ.`,
		Example: `  gorxe statusbyte send 10.0.0.1 left.raw right.raw
  ffmpeg ... | gorxe statusbyte send 10.0.0.1 7=-
  gorxe statusbyte send 10.0.0.1 --cameras 12 --fps 25 --frame 640x480x3 --duration 10s --json`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cli.Usagef("HOST is missing")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			f.changed = cmd.Flags().Changed
			return f.run(cmd.Context(), args[0], args[1:], cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	fs := cmd.Flags()
	f.register(fs, "that of the route to HOST")
	f.device.Classes.RegisterClass(fs, "traffic class of both sides, 0 to 7; 7 is the most urgent "+
		"(default 0)")
	for _, name := range []string{"blocks", "block-size"} {
		fs.Lookup(name).DefValue = "that of the receiver"
	}
	f.firstDevice = cli.Int{Min: 0, Max: maxDevices - 1}
	f.cameras = cli.Int{Min: 0, Max: maxDevices}
	f.fps = cli.Int{N: defaultFPS, Min: 1, Max: maxFPS}
	f.duration = cli.Duration{Min: 0, Max: maxDuration}
	fs.Var(&f.firstDevice, "device", "number of the first file or camera")
	fs.Var(&f.cameras, "cameras", "send this number of synthetic cameras instead of files")
	fs.Var(&f.fps, "fps", "frames per second of each camera")
	fs.StringVar(&f.frame, "frame", "640x480x3",
		"size of a camera's frame: width x height x bytes per pixel")
	fs.Var(&f.duration, "duration", "how long the cameras run (default: until interrupted)")
	cli.HideDefaults(fs, "duration")
	return cmd
}

// sources returns what the flags and arguments ask to send.
func (f *sendFlags) sources(files []string) ([]streams.Source, error) {
	switch {
	case f.cameras.N > 0 && len(files) > 0:
		return nil, cli.Usagef("files and --cameras exclude each other: choose one of them")
	case f.cameras.N == 0 && len(files) == 0:
		return nil, cli.Usagef("nothing to send: name files, - for standard input, or use --cameras")
	case len(files) > 0:
		for _, name := range []string{"fps", "frame", "duration"} {
			if f.changed(name) {
				return nil, cli.Usagef("--%s is about cameras: it needs --cameras", name)
			}
		}
		return streams.OpenFiles(files, f.firstDevice.N)
	case f.firstDevice.N+f.cameras.N > maxDevices:
		return nil, cli.Usagef("the last camera would be device %d: device numbers are 0 to 255",
			f.firstDevice.N+f.cameras.N-1)
	}
	size, err := parseFrame(f.frame)
	if err != nil {
		return nil, err
	}
	c := streams.Cameras{First: f.firstDevice.N, Count: f.cameras.N, Frame: size, FPS: f.fps.N,
		Duration: f.duration.D}
	return c.Sources(), nil
}

// parseFrame parses a frame size such as "640x480x3" and returns the product, in bytes.
func parseFrame(text string) (int, error) {
	n, parts := 1, strings.Split(text, "x")
	for _, part := range parts {
		k, err := strconv.Atoi(part)
		if err != nil || k < 1 || n > maxFrame/k || len(parts) != 3 {
			return 0, cli.Usagef("%q is not a frame size: write it as 640x480x3 (width, height, bytes per pixel), at most %s",
				text, cli.FormatSize(maxFrame))
		}
		n *= k
	}
	return n, nil
}

func (f *sendFlags) run(ctx context.Context, host string, files []string, out,
	diag io.Writer) (err error) {
	list, err := f.sources(files)
	if err != nil {
		return err
	}
	defer streams.Close(list)
	peer, err := f.device.FindPeer(ctx, host)
	if err != nil {
		return err
	}
	dev, err := f.device.OpenContext(ctx, roce.Auto)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	s, err := f.connect(ctx, dev, peer.Addr)
	if err != nil {
		return fmt.Errorf("connect to 'statusbyte recv' at %s: %w", host, err)
	}
	r := &streams.Report{Peer: host, Datapath: dev.Info().Datapath, Blocks: s.Blocks(),
		BlockSize: s.BlockSize()}
	start := time.Now()
	bar := cli.NewBar(diag, streams.TotalSize(list), "send", true)
	r.Devices, err = streams.Send(ctx, s, list, bar.Add)
	bar.Clear()
	truncated := cli.Interrupted(ctx) && errors.Is(err, context.Canceled)
	if truncated {
		err = nil
	}
	if e := s.Close(); err == nil {
		err = e
	}
	r.Seconds = time.Since(start).Seconds()
	st := s.Stats()
	r.Syncs, r.BadStatus = st.Syncs, st.BadStatus
	if err != nil {
		return err
	}
	if err := printReport(out, r, f.json); err != nil || !truncated {
		return err
	}
	return fmt.Errorf("%w: not all files were sent completely", cli.ErrInterrupted)
}

func (f *sendFlags) connect(ctx context.Context, dev *roce.Device,
	addr netip.Addr) (*statusbyte.Sender, error) {
	var c statusbyte.Config
	if f.changed("blocks") {
		c.Blocks = f.blocks.N
	}
	if f.changed("block-size") {
		c.BlockSize = f.size.Int()
	}
	dial, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	s, err := statusbyte.Init(dial, dev, netip.AddrPortFrom(addr, uint16(f.port.N)), c)
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("no answer within %v: start it there first, on the interface with that address; "+
			"it serves one sender at a time", connectTime)
	}
	var rejected *roce.RejectError
	if errors.As(err, &rejected) && rejected.Reason == roce.RejectNoListener {
		err = fmt.Errorf("%w: start it there first, with the same --port", err)
	}
	return s, err
}
