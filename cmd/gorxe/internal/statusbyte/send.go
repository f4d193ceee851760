package statusbyte

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/device"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/statusbyte"
)

// The flags of send.
type sendFlags struct {
	shared
	device   cli.Int
	cameras  cli.Int
	fps      cli.Int
	frame    string
	duration cli.Duration
	set      func(name string) bool // whether the user gave a flag
}

// Bounds of the flags.
const (
	maxCameras  = 256
	maxFPS      = 1000
	defaultFPS  = 25
	maxDuration = 24 * time.Hour
	connectTime = 10 * time.Second
)

func sendCommand() *cobra.Command {
	f := new(sendFlags)
	cmd := &cobra.Command{
		Use:   "send HOST [[N=]FILE...]",
		Short: "Send files, standard input or synthetic cameras to 'statusbyte recv'",
		Long: `Send files, standard input or synthetic cameras to 'statusbyte recv' on HOST. All share one queue pair. Each file is a device,
numbered from --device on, or as N=FILE says; "-" is standard input. A block goes out when it is full; of a pipe, at the latest 20 ms
after its first byte was read, so that nothing is kept back while the pipe is silent.

A signal ends the streams of pipes and cameras properly; a file that it cuts off has no end at the receiver, and the exit status is 1.

The receiver decides on the number and size of the blocks, unless --blocks and --block-size say what they have to be.`,
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
			f.set = cmd.Flags().Changed
			return f.run(cmd.Context(), args[0], args[1:], cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	fs := cmd.Flags()
	f.register(fs, statusbyte.DefaultBlocks, statusbyte.DefaultBlockSize, "the one on the route to HOST")
	for _, name := range []string{"blocks", "block-size"} {
		fs.Lookup(name).DefValue = "as the receiver has"
	}
	f.device = cli.Int{Min: 0, Max: 255}
	f.cameras = cli.Int{Min: 0, Max: maxCameras}
	f.fps = cli.Int{N: defaultFPS, Min: 1, Max: maxFPS}
	f.duration = cli.Duration{Min: 0, Max: maxDuration}
	fs.Var(&f.device, "device", "number of the first file or camera")
	fs.Var(&f.cameras, "cameras", "send so many synthetic cameras instead of files")
	fs.Var(&f.fps, "fps", "frames a second of each camera")
	fs.StringVar(&f.frame, "frame", "640x480x3", "what a camera's frame is: width x height x bytes a pixel")
	fs.Var(&f.duration, "duration", "how long the cameras run (default: until interrupted)")
	return cmd
}

// sources makes what is to be sent.
func (f *sendFlags) sources(files []string) ([]source, error) {
	switch {
	case f.cameras.N > 0 && len(files) > 0:
		return nil, cli.Usagef("give either files or --cameras")
	case f.cameras.N == 0 && len(files) == 0:
		return nil, cli.Usagef("nothing to send: name files, - for standard input, or --cameras")
	case len(files) > 0:
		return openFiles(files, f.device.N)
	case f.device.N+f.cameras.N > maxCameras:
		return nil, cli.Usagef("the last camera would be device %d: they go from 0 to 255", f.device.N+f.cameras.N-1)
	}
	size, err := frameSize(f.frame)
	if err != nil {
		return nil, err
	}
	period := time.Second / time.Duration(f.fps.N)
	list := make([]source, f.cameras.N)
	for i := range list {
		// Cameras run freely: their frames come one after the other, not all at once.
		offset := period * time.Duration(i) / time.Duration(len(list))
		list[i] = &camera{dev: uint8(f.device.N + i), frame: size, period: period, frames: frames(f.duration.D, period), offset: offset}
	}
	return list, nil
}

// frames is how many of them begin within a duration; 0: without end.
func frames(d, period time.Duration) int { return int((d + period - 1) / period) }

func (f *sendFlags) run(ctx context.Context, host string, files []string, out, diag io.Writer) (err error) {
	list, err := f.sources(files)
	if err != nil {
		return err
	}
	defer func() {
		for _, s := range list {
			_ = s.close()
		}
	}()
	peer, err := device.FindPeer(ctx, host, f.nic.Iface)
	if err != nil {
		return err
	}
	f.nic.Iface, f.nic.GIDIndex = peer.Iface, -1
	dev, err := f.nic.Open(roce.Auto)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	cfg := statusbyte.Config{}
	if f.set("blocks") {
		cfg.Blocks = f.blocks.N
	}
	if f.set("block-size") {
		cfg.BlockSize = f.size.Int()
	}
	dial, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	s, err := statusbyte.Init(dial, dev, netip.AddrPortFrom(peer.Addr, uint16(f.port.N)), cfg)
	if err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("no answer within %v: start it there first, on the interface with that address; it serves one sender at a time", connectTime)
		}
		return fmt.Errorf("connect to 'statusbyte recv' at %s: %w", host, err)
	}
	r := &report{Peer: host, Datapath: dev.Info().Datapath, Blocks: s.Blocks(), BlockSize: s.BlockSize()}
	begin := time.Now()
	bar := newBar(diag, list)
	all, err := sendAll(ctx, s, list, func(n int) { _ = bar.Add(n) })
	_ = bar.Clear() // a terminal that is gone is no reason to fail
	cut := cli.Interrupted(ctx) && errors.Is(err, context.Canceled)
	if cut {
		err = nil
	}
	if e := s.Close(); err == nil {
		err = e
	}
	r.Seconds = time.Since(begin).Seconds()
	st := s.Stats()
	r.Devices, r.Syncs, r.BadStatus = all.reports(), st.Syncs, st.BadStatus
	if err != nil {
		return err
	}
	if err := r.write(out, f.json); err != nil || !cut {
		return err
	}
	return fmt.Errorf("%w: not all files were sent to their end", cli.ErrInterrupted)
}

// sendAll sends all sources side by side. If one fails the others end, too.
func sendAll(ctx context.Context, s *statusbyte.Sender, list []source, sent func(n int)) (*tallies, error) {
	all := new(tallies)
	var wg sync.WaitGroup
	errs := make([]error, len(list))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for i, src := range list {
		t := all.of(src.device())
		wg.Add(1)
		go func() {
			defer wg.Done()
			if errs[i] = sendOne(ctx, s, src, t, sent); errs[i] != nil {
				cancel()
			}
		}()
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil && !errors.Is(err, context.Canceled) {
			return all, err
		}
	}
	return all, errors.Join(errs...)
}

func sendOne(ctx context.Context, s *statusbyte.Sender, src source, t *tally, sent func(n int)) error {
	// Read aside, not in a send block: a camera or pipe that has nothing to say must not keep a block from the others. What was read is
	// sent before more is waited for.
	buf := make([]byte, s.BlockSize())
	for {
		n, err := src.next(ctx, buf)
		if n > 0 {
			e := s.Write(ctx, src.device(), buf[:n])
			if e != nil && ctx.Err() != nil && errors.Is(e, ctx.Err()) && !src.whole() {
				e = late(s.Write)(ctx, src.device(), buf[:n]) // what came before an interruption
			}
			if e != nil {
				return e
			}
			t.add(buf[:n])
			sent(n)
		}
		switch {
		case errors.Is(err, io.EOF):
			return endStream(ctx, s, src.device())
		case err != nil:
			return fmt.Errorf("read device %d's stream: %w", src.device(), err)
		}
	}
}

// late makes a write of one that goes on after an interruption, for a while.
func late(write func(context.Context, uint8, []byte) error) func(context.Context, uint8, []byte) error {
	return func(ctx context.Context, device uint8, data []byte) error {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), connectTime)
		defer cancel()
		return write(end, device, data)
	}
}

// endStream marks the end, even after an interruption.
func endStream(ctx context.Context, s *statusbyte.Sender, device uint8) error {
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), connectTime)
	defer cancel()
	return s.End(end, device)
}

// newBar shows on a terminal how much of all streams was sent, and nothing elsewhere. If nobody knows how much is to come, it shows
// what was sent and how fast.
func newBar(w io.Writer, list []source) *progressbar.ProgressBar {
	file, ok := w.(*os.File)
	return progressbar.NewOptions64(total(list),
		progressbar.OptionSetWriter(w), progressbar.OptionSetVisibility(ok && term.IsTerminal(int(file.Fd()))),
		progressbar.OptionSetDescription("send"), progressbar.OptionShowBytes(true), progressbar.OptionUseIECUnits(true),
		progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionClearOnFinish(), progressbar.OptionSetRenderBlankState(false),
	)
}

// total is how many bytes the sources have together; -1: nobody knows.
func total(list []source) (n int64) {
	for _, s := range list {
		size := s.size()
		if size < 0 {
			return -1
		}
		n += size
	}
	return n
}
