package statusbyte

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"

	"github.com/spf13/cobra"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/device"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/statusbyte"
	"github.com/gorxe/gorxe/xdp"
)

type recvFlags struct {
	shared
	dir     string
	segment cli.Size
	devices string
	keep    bool
	timeout cli.Duration

	lossless bool
	grace    cli.Duration
}

const defaultGrace = 5 * time.Second

func recvCommand() *cobra.Command {
	f := new(recvFlags)
	cmd := &cobra.Command{
		Use:   "recv",
		Short: "Receive the streams of 'statusbyte send', into a directory for each device",
		Long: `Receive the streams of 'statusbyte send', check their order, and hash them. With --dir each device's packets go into a directory
of its own, DIR/device-NNN: files that appear whole, in the order of their names, ready to be mounted into a consumer's
container; see 'statusbyte tail'.

A directory that takes nothing (full, read-only, gone) is told at once, and holds up only its own device. Half of the blocks are for
packets that wait; they stay in memory, the sender goes round them, and they are stored, in order, as soon as the directory takes them:
they are tried every 100 ms, and for --grace after the last packet. When that room is used up too, everything waits, for 0.5 s in
10 s at most; after that the stuck device's packets are dropped, counted ("unstored") and told, the exit status is 1, and the number
of its next file is one higher than it would be: files of a device with consecutive numbers have no packets missing between them.
With --lossless everything waits instead for as long as it takes, all devices: nothing is dropped until recv is interrupted.

It serves one sender and ends, unless --keep. A sender that dies without a word (its host crashes) looks like one that has nothing to
say, since the receiver sends nothing: with --keep choose a --timeout, after which the next one has its turn. The packets, bytes and
SHA-256 that it ends with are those that arrived, unstored ones included.`,
		Example: `  gorxe statusbyte recv -d eth0
  gorxe statusbyte recv -d eth0 --dir /data --segment 64MiB --devices 0-11 --keep
  gorxe statusbyte recv -d eth0 --blocks 3 --block-size 1m --json`,
		Args: cli.Named(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	fs := cmd.Flags()
	f.register(fs, statusbyte.DefaultBlocks, statusbyte.DefaultBlockSize, "the only one")
	f.segment = cli.Size{Min: 0, Max: 1 << 40}
	f.timeout = cli.Duration{Min: 0, Max: maxDuration}
	fs.StringVar(&f.dir, "dir", "", "store each device's packets below this directory")
	fs.Var(&f.segment, "segment", "put packets together to files of so many bytes at least (default: a file for each packet)")
	fs.StringVar(&f.devices, "devices", "", "take packets of these devices only, as in 0-11,20 (default: all)")
	fs.BoolVar(&f.keep, "keep", false, "serve one sender after the other until interrupted")
	f.grace = cli.Duration{D: defaultGrace, Min: 0, Max: maxDuration}
	fs.BoolVar(&f.lossless, "lossless", false, "while a directory takes nothing, let all devices wait rather than drop a packet of one")
	fs.Var(&f.grace, "grace", "how long packets wait for such a directory after the last one has come")
	fs.Var(&f.timeout, "timeout", "give a sender up after so long without a packet (default: never)")
	return cmd
}

func (f *recvFlags) run(ctx context.Context, out, diag io.Writer) (err error) {
	cfg := statusbyte.Config{Blocks: f.blocks.N, BlockSize: f.size.Int()}
	if f.devices != "" {
		if cfg.Devices, err = deviceList(f.devices); err != nil {
			return err
		}
	}
	// A directory that cannot be used is told before anybody sends.
	store, err := f.open(cfg.Devices)
	if err != nil {
		return err
	}
	if store != nil {
		defer func() { err = errors.Join(err, store.Close()) }()
	}
	if f.nic.Iface == "" {
		if f.nic.Iface, err = device.Only(); err != nil {
			return err
		}
	}
	f.nic.GIDIndex = -1
	dev, err := f.nic.Open(roce.Auto)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	l, err := statusbyte.Listen(dev, netip.AddrPortFrom(netip.IPv4Unspecified(), uint16(f.port.N)), cfg)
	if err != nil {
		if errors.Is(err, statusbyte.ErrConfig) {
			return cli.Usage(err)
		}
		return err
	}
	ctx, stop := device.WhileThere(ctx, dev)
	defer stop()
	fmt.Fprintf(diag, "%s (%s) receives on RDMA port %d: %s of %s.\n",
		f.nic.Iface, dev.Info().Datapath, f.port.N, cli.Count(cfg.Blocks, "block"), cli.FormatSize(int64(cfg.BlockSize)))
	var lost error // the last sender's packets that could not be stored
	for {
		err := f.serve(ctx, l, dev, store, out, diag)
		switch {
		case cli.Interrupted(ctx) && (err == nil || errors.Is(err, context.Canceled)):
			return lost
		case errors.Is(context.Cause(ctx), xdp.ErrGone):
			return context.Cause(ctx)
		case !f.keep:
			return err
		case errors.Is(err, errUnstored):
			lost = err
			fallthrough
		case err != nil:
			fmt.Fprintf(diag, "%v\n", err)
		}
	}
}

func (f *recvFlags) open(devices []uint8) (*statusbyte.Store, error) {
	if f.dir == "" {
		return nil, nil
	}
	store, err := statusbyte.OpenStore(f.dir, f.segment.Bytes)
	if err != nil {
		return nil, err
	}
	for _, d := range devices {
		if err := store.Open(d); err != nil {
			return nil, err
		}
	}
	return store, nil
}

// serve takes one sender's streams and reports them.
func (f *recvFlags) serve(ctx context.Context, l *statusbyte.Listener, dev *roce.Device, store *statusbyte.Store, out, diag io.Writer) error {
	r, err := l.Accept(ctx)
	if err != nil {
		return err
	}
	rep := &report{Peer: r.Remote().Addr().String(), Datapath: dev.Info().Datapath, Blocks: r.Blocks(), BlockSize: r.BlockSize()}
	d := newDelivery(r, store, options{timeout: f.timeout.D, grace: f.grace.D, lossless: f.lossless, diag: diag})
	err = d.run(ctx)
	rep.Seconds = d.elapsed().Seconds()
	d.fill(rep)
	if e := r.Close(); err == nil {
		err = e
	}
	interrupted := cli.Interrupted(ctx) && errors.Is(err, context.Canceled)
	if e := rep.write(out, f.json); e != nil || (err != nil && !interrupted) {
		return errors.Join(err, e)
	}
	return d.unstored()
}

// errTimeout: the sender is silent.
var errTimeout = errors.New("no packet came in time: is the sender still there? (--timeout)")

// patience is a context that ends when no packet comes for a while.
type patience struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	timer  *time.Timer
	after  time.Duration
}

func newPatience(ctx context.Context, after time.Duration) *patience {
	p := &patience{after: after}
	p.ctx, p.cancel = context.WithCancelCause(ctx)
	if after > 0 {
		p.timer = time.AfterFunc(after, func() { p.cancel(errTimeout) })
	}
	return p
}

// renew begins anew.
func (p *patience) renew() {
	if p.timer != nil {
		p.timer.Reset(p.after)
	}
}

func (p *patience) end() {
	if p.timer != nil {
		p.timer.Stop()
	}
	p.cancel(nil)
}
