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
	"github.com/gorxe/gorxe/internal/guard"
	"github.com/gorxe/gorxe/internal/streams"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/statusbyte"
)

type recvFlags struct {
	shared
	access   guard.Flags
	confine  device.Confinement
	dir      string
	segment  cli.Size
	devices  string
	keep     bool
	timeout  cli.Duration
	lossless bool
	grace    cli.Duration
	sync     bool
	changed  func(name string) bool // whether the user set a flag
}

const (
	maxSegment   = 1 << 40
	defaultGrace = 5 * time.Second
)

func recvCommand() *cobra.Command {
	f := new(recvFlags)
	cmd := &cobra.Command{
		Use:   "recv",
		Short: "Receive the streams of 'statusbyte send' into one directory for each device",
		Long: `Receive the streams of 'statusbyte send', check their order and hash them. With --dir
the packets of each device are stored in a separate directory, DIR/device-NNN, in
files that appear complete and in the order of their names. The directory can be
mounted into a consumer's container; see 'statusbyte tail'.

If a directory cannot be written (full, read-only, removed), recv reports it at once
and only that device waits. Its packets stay in memory, in up to half of the blocks.
recv tries to store them every 100 ms, and for --grace after the last packet. When the
blocks are used up, all devices wait for up to 0.5 s, at most once in 10 s. After that,
packets of the device are dropped: they are reported and counted ("unstored"), the
exit status is 1, and the number of the next file is one higher than usual. So no
packets are missing between files with consecutive numbers. With --lossless nothing
is dropped: all devices wait until the directory can be written or recv is interrupted.

A file appears when its data is on disk (fsync), and the end mark and the final
report follow when everything is. A power failure loses at most what arrived in the
last moments: about 64 MiB, and 1 s of files that are not full. It leaves no incomplete
files. With --sync=false files appear at once, and a power failure may leave empty or
incomplete ones.

When its sockets are open, recv drops its privileges and prints what it kept. It can
then access only DIR. Restart it if DIR itself was replaced. With --user, it stores
files as that user, who must be able to write to DIR; otherwise it keeps its user.

Without --keep, recv serves one sender and exits. Senders with other sizes are refused,
and do not count. A sender whose host has crashed
looks like a sender without data, because the receiver sends nothing. So set --timeout
with --keep; otherwise such a sender blocks the next one. The final counts and SHA-256
include packets that arrived and could not be stored.`,
		Example: `  gorxe statusbyte recv -d eth0
  gorxe statusbyte recv -d eth0 --dir /data --segment 64MiB --devices 0-11 --keep
  gorxe statusbyte recv -d eth0 --blocks 3 --block-size 1m --json`,
		Args: cli.Named(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			f.changed = cmd.Flags().Changed
			return f.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	fs := cmd.Flags()
	f.register(fs, "the only usable one")
	f.segment = cli.Size{Min: 0, Max: maxSegment}
	f.timeout = cli.Duration{Min: 0, Max: maxDuration}
	f.grace = cli.Duration{D: defaultGrace, Min: 0, Max: maxDuration}
	fs.StringVar(&f.dir, "dir", "",
		"store the packets of each device below this directory, which is created in an existing one")
	fs.Var(&f.segment, "segment",
		"combine packets into files of at least this size (default: one file for each packet)")
	fs.StringVar(&f.devices, "devices", "",
		"accept packets of these devices only, for example 0-11,20 (default: all)")
	fs.BoolVar(&f.keep, "keep", false, "serve one sender after the other until interrupted")
	fs.BoolVar(&f.lossless, "lossless", false,
		"while a directory cannot be written, let all devices wait rather than drop packets")
	fs.Var(&f.grace, "grace",
		"after the last packet, how long to retry if a directory cannot be written")
	fs.BoolVar(&f.sync, "sync", true, "let files appear, and count packets, only when they are on disk")
	fs.Var(&f.timeout, "timeout",
		"end a sender's session after this time without a packet (default: never)")
	f.access.Register(fs)
	f.confine.Register(fs, "with --dir root, otherwise "+device.DefaultUser)
	cli.HideDefaults(fs, "segment", "timeout")
	return cmd
}

func (f *recvFlags) run(ctx context.Context, out, diag io.Writer) (err error) {
	c := statusbyte.Config{Blocks: f.blocks.N, BlockSize: f.size.Int()}
	if f.devices != "" {
		if c.Devices, err = parseDevices(f.devices); err != nil {
			return err
		}
	}
	if f.dir == "" {
		for _, name := range []string{"segment", "lossless", "grace", "sync"} {
			if f.changed(name) {
				return cli.Usagef("--%s needs --dir: without a directory no packets are stored", name)
			}
		}
	}
	// Fail before the first sender connects if the directory cannot be used.
	if err := f.confine.AccessFiles(); err != nil {
		return err
	}
	store, err := f.openStore(c.Devices, diag)
	if err != nil {
		return err
	}
	if store != nil {
		defer func() { err = errors.Join(err, store.Close()) }()
	}
	if err := f.device.SetDefaultIface(); err != nil {
		return err
	}
	dev, err := f.device.OpenContext(ctx, roce.Auto)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	peers := f.access.Guard(dev)
	c.Permits = peers.Permits
	c.Refused = peers.Limit(func(peer netip.AddrPort, err error) {
		fmt.Fprintf(diag, "A request of %v was refused: %v.\n", peer.Addr(), err)
	})
	l, err := statusbyte.Listen(dev, netip.AddrPortFrom(netip.IPv4Unspecified(), uint16(f.port.N)),
		c)
	if err != nil {
		if errors.Is(err, statusbyte.ErrConfig) {
			return cli.Usage(err)
		}
		return err
	}
	if err := f.confine.ApplyAndLog(diag, f.dirs()...); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	ctx, stop := device.WhilePresent(ctx, dev)
	defer stop()
	fmt.Fprintf(diag, "%s (%s) receives on RDMA port %d: %s of %s, from %v.\n",
		f.device.Iface, dev.Info().Datapath, f.port.N, cli.Count(c.Blocks, "block"),
		cli.FormatSize(int64(c.BlockSize)), peers)
	return f.serveAll(ctx, l, dev, store, out, diag, peers)
}

// serveAll serves one sender or, with --keep, one after the other.
func (f *recvFlags) serveAll(
	ctx context.Context, l *statusbyte.Listener, dev *roce.Device, store *statusbyte.Store, out,
	diag io.Writer, peers *guard.Guard,
) error {
	failed := peers.Limit(func(_ netip.AddrPort, err error) { fmt.Fprintf(diag, "%v\n", err) })
	var unstored error // of the last sender whose packets could not be stored
	for {
		r, err := l.Accept(ctx)
		listening := err == nil
		if listening {
			err = f.serve(ctx, r, dev, store, out, diag, peers)
		}
		switch {
		case cli.Interrupted(ctx) && (err == nil || errors.Is(err, context.Canceled)):
			return unstored
		case dev.Err() != nil: // its interface was removed
			return dev.Err()
		case !f.keep || !listening:
			return err
		case errors.Is(err, streams.ErrUnstored):
			unstored = err
			fallthrough
		case err != nil:
			failed(r.Remote(), err)
		}
	}
}

// dirs lists the directories in which recv stores files.
func (f *recvFlags) dirs() []string {
	if f.dir == "" {
		return nil
	}
	return []string{f.dir}
}

// openStore opens the store and the directories of the devices, or returns nil without --dir. The
// directory of a single device must not keep the others from being served: its consumer may own it.
func (f *recvFlags) openStore(devices []uint8, diag io.Writer) (*statusbyte.Store, error) {
	if f.dir == "" {
		return nil, nil
	}
	var opts []statusbyte.StoreOption
	if !f.sync {
		opts = append(opts, statusbyte.WithoutSync())
	}
	store, err := statusbyte.OpenStore(f.dir, f.segment.Bytes, opts...)
	if err != nil {
		return nil, err
	}
	for _, d := range devices {
		if err := store.Open(d); err != nil {
			fmt.Fprintf(diag, "device %d: %v.\n", d, err)
		}
	}
	return store, nil
}

// shows reports whether the report about a sender is printed. With --keep, any number of senders
// may fail, so reports about those are limited.
func (f *recvFlags) shows(peers *guard.Guard, sender netip.Addr, failed bool) bool {
	return !failed || !f.keep || peers.ShowSession(sender)
}

// serve receives the streams of one sender and prints the report.
func (f *recvFlags) serve(
	ctx context.Context, r *statusbyte.Receiver, dev *roce.Device, store *statusbyte.Store, out,
	diag io.Writer, peers *guard.Guard,
) error {
	report := &streams.Report{
		Peer: r.Remote().Addr().String(), Datapath: dev.Info().Datapath, Blocks: r.Blocks(),
		BlockSize: r.BlockSize(),
	}
	d := streams.NewDelivery(r, store,
		streams.Options{Timeout: f.timeout.D, Grace: f.grace.D, Lossless: f.lossless, Log: diag})
	err := d.Run(ctx)
	d.Fill(report)
	if e := r.Close(); err == nil {
		err = e
	}
	interrupted := cli.Interrupted(ctx) && errors.Is(err, context.Canceled)
	if !f.shows(peers, r.Remote().Addr(), err != nil && !interrupted) {
		return err
	}
	if e := printReport(out, report, f.json); e != nil || (err != nil && !interrupted) {
		return errors.Join(err, e)
	}
	return d.Unstored()
}
