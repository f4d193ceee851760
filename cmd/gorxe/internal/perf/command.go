package perf

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/device"
	"github.com/gorxe/gorxe/internal/exchange"
	"github.com/gorxe/gorxe/internal/perftest"
	"github.com/gorxe/gorxe/internal/session"
	"github.com/gorxe/gorxe/roce"
)

// flags are what the user gave.
type flags struct {
	nic      device.Flags
	size     cli.Size
	iters    cli.Int
	duration cli.Duration
	qps      cli.Int
	depth    cli.Int
	mtu      cli.Int
	port     cli.Int
	atomic   cli.Choice
	all      bool
	bidir    bool
	infinite bool
	cm       bool
	json     bool
	gbits    bool
}

// Command is "gorxe perf".
func Command() *cobra.Command {
	f := new(flags)
	cmd := &cobra.Command{
		Use:   "perf OP [HOST]",
		Short: "Measure bandwidth or latency between two ends: gorxe, or perftest (ib_write_bw ...)",
		Long: `Measure bandwidth or latency of one RDMA operation between two ends.

Without HOST this end is the server: it serves one client and ends. With HOST
it is the client of a 'gorxe perf' server of the same OP, or of 'gorxe up'. The
client's flags decide about the test; a server needs -d, -x and -p only.

Either end may also be perftest: ib_write_bw for write-bw, ib_send_lat for
send-lat and so on, on any RDMA NIC or the kernel's rxe. The first message tells
who is there. As perftest's rule has it, give its server the client's flags (-s,
-n, -D, -a, -q, -R); gorxe as server sees them by itself, but -R, and in
write-lat -s beyond 4 KiB. -b and write-imm-bw need gorxe on both ends, and no -R.

OP is one of ` + strings.Join(opNames(), ", ") + `.

The flags and columns are perftest's. MB are 2^20 bytes. write-lat and send-lat
show half of the round trip, read-lat and atomic-lat the time from post to
completion.`,
		Example: `  # on host A, then on host B: bandwidth of 64 KiB WRITEs
  gorxe perf write-bw -d eth0
  gorxe perf write-bw hostA

  # all sizes, both directions at once, on 4 queue pairs
  gorxe perf write-bw hostA -a -b -q 4

  # latency of 8-byte WRITEs for 5 seconds, as JSON
  gorxe perf write-lat hostA -s 8 -D 5 --json

  # against the kernel's RDMA: there 'ib_send_bw -x 1 -q 8', here
  gorxe perf send-bw hostC -q 8`,
		Args:              cli.Named("OP", "[HOST]"),
		ValidArgsFunction: completeOp,
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.run(cmd, args)
		},
	}
	f.register(cmd.Flags())
	return cmd
}

func completeOp(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return opNames(), cobra.ShellCompDirectiveNoFileComp
	}
	return nil, cobra.ShellCompDirectiveNoFileComp
}

func (f *flags) register(fs *pflag.FlagSet) {
	f.size = cli.Size{Bytes: 0, Min: 1, Max: maxBytes}
	f.iters = cli.Int{N: 0, Min: 1, Max: maxIterations}
	f.duration = cli.Duration{Min: minDuration, Max: maxDuration}
	f.qps = cli.Int{N: 1, Min: 1, Max: maxQPs}
	f.depth = cli.Int{N: defaultDepth, Min: 1, Max: maxDepth}
	f.mtu = cli.Int{N: 0, Min: 256, Max: 4096}
	f.port = cli.Int{N: perftest.DefaultPort, Min: 1, Max: 65535}
	f.atomic = cli.Choice{Value: fetchAdd, Words: atomicKinds}
	fs.VarP(&f.size, "size", "s", "message size (default 64 KiB for bandwidth, 2 for latency, 8 for atomics)")
	fs.VarP(&f.iters, "iters", "n", "messages to send on each queue pair (default 5000 for bandwidth, 1000 for latency)")
	fs.VarP(&f.duration, "duration", "D", "run for a time instead of a number of messages; a bare number is seconds")
	fs.VarP(&f.qps, "qp", "q", "number of queue pairs")
	fs.VarP(&f.depth, "tx-depth", "t", "work requests outstanding on each queue pair")
	fs.VarP(&f.mtu, "mtu", "m", "path MTU: 256, 512, 1024, 2048 or 4096 (default: the largest that both ends carry)")
	fs.BoolVar(&f.infinite, "run_infinitely", false, "run until one end is stopped, with a row every -D seconds (default 5; bandwidth)")
	fs.BoolVarP(&f.cm, "rdma_cm", "R", false, "connect queue pairs by rdma_cm, as perftest's -R does; on both ends")
	fs.BoolVarP(&f.all, "all", "a", false, "run all sizes from 2 B to 8 MiB")
	fs.StringVarP(&f.nic.Iface, "dev", "d", "", "network interface (default: the one on the route to HOST, or the only one)")
	f.nic.RegisterGID(fs, "x")
	fs.BoolVarP(&f.bidir, "bidirectional", "b", false, "measure both directions at once (bandwidth)")
	fs.VarP(&f.port, "port", "p", "TCP port on which the two ends meet")
	fs.VarP(&f.atomic, "atomic_type", "A", "kind of atomic: FETCH_AND_ADD or CMP_AND_SWAP")
	f.nic.Register(fs)
	fs.BoolVar(&f.json, "json", false, "one line of JSON a row")
	fs.BoolVar(&f.gbits, "report_gbits", false, "show bandwidth in Gb/sec (10^9 bits) instead of MB/sec")
	// They are 0 until given; the text above says what that means.
	for _, name := range []string{"size", "iters", "duration", "mtu"} {
		fs.Lookup(name).DefValue = ""
	}
}

func (f *flags) run(cmd *cobra.Command, args []string) error {
	p, runs, err := f.params(cmd.Flags(), args[0])
	if err != nil {
		return cli.Usage(err)
	}
	out := &printer{w: cmd.OutOrStdout(), json: f.json, gbits: f.gbits}
	if len(args) == 1 {
		return f.serve(cmd.Context(), p, out)
	}
	return f.client(cmd.Context(), args[1], p, runs, out)
}

// params turns the flags into a test and its runs.
func (f *flags) params(fs *pflag.FlagSet, op string) (*Params, []Run, error) {
	p := &Params{
		Op: op, Bytes: f.size.Int(), QPs: f.qps.N, Depth: f.depth.N, MTU: roce.MTU(f.mtu.N), Bidirectional: f.bidir,
	}
	o := findOp(op)
	switch {
	case o == nil:
		return nil, nil, p.check()
	case f.all && fs.Changed("size"):
		return nil, nil, errors.New("-a runs all sizes and -s one: choose one of them")
	case f.all && fs.Changed("duration"):
		return nil, nil, errors.New("-a runs by iterations: leave -D out")
	case fs.Changed("duration") && fs.Changed("iters"):
		return nil, nil, errors.New("-D runs for a time and -n for a number of messages: choose one of them")
	case f.infinite && (o.latency || f.all || fs.Changed("iters")):
		return nil, nil, errors.New("--run_infinitely is for bandwidth of one size: leave -a and -n out")
	case o.latency && fs.Changed("tx-depth"):
		return nil, nil, errors.New("a latency test has one message under way: leave -t out")
	case !o.atomic && fs.Changed("atomic_type"):
		return nil, nil, fmt.Errorf("-A is for atomics: leave it out of %s", op)
	}
	if o.atomic {
		p.Atomic = f.atomic.Value
	}
	run := Run{Iterations: f.iters.N, Duration: f.duration.D, Endless: f.infinite}
	if f.infinite && run.Duration == 0 {
		run.Duration = infiniteRow
	}
	if run.Iterations == 0 && run.Duration == 0 {
		run.Iterations = bwIterations
		if o.latency {
			run.Iterations = latIterations
		}
	}
	bytes := []int{p.Bytes}
	switch {
	case f.all:
		bytes = sizes()
	case p.Bytes == 0:
		bytes = []int{o.bytes}
	}
	var runs []Run
	for _, n := range bytes {
		p.Bytes, run.Bytes = n, n // the largest is the last
		runs = append(runs, run)
	}
	return p, runs, p.check()
}

// client runs the test against the server on host.
func (f *flags) client(ctx context.Context, host string, p *Params, runs []Run, out *printer) (err error) {
	peer, err := device.FindPeer(ctx, host, f.nic.Iface)
	if err != nil {
		return err
	}
	f.nic.Iface = peer.Iface
	dev, err := f.nic.Open(f.progress())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	o := stockOptions{all: f.all, duration: f.duration.D > 0, infinite: f.infinite, gbits: f.gbits}
	var c client
	if addr := netip.AddrPortFrom(peer.Addr, uint16(f.port.N)); f.cm {
		c, err = dialCM(ctx, dev, &f.nic, addr, p, o)
	} else {
		c, err = dial(ctx, dev, &f.nic, addr.String(), p, o)
	}
	if err != nil {
		return err
	}
	defer func() { c.close(err) }()
	out.head(p, c.session(), c.session().Peer)
	switch err = f.runs(ctx, c, runs, out); {
	case errors.Is(err, errStopped):
		fmt.Fprintln(os.Stderr, "gorxe perf:", err)
		err = nil
	case err == nil:
		err = c.finish(ctx)
	}
	if err == nil {
		out.foot()
	}
	return err
}

// errStopped ends a run without end.
var errStopped = errors.New("the server was stopped")

// progress is the one that measures best. With -R the connection manager and the test both need the device, from two
// goroutines.
func (f *flags) progress() roce.Progress {
	if f.cm {
		return roce.Auto
	}
	return roce.Manual
}

// runs makes the runs, or the one without end, which Ctrl-C ends well, and the server's end, too.
func (f *flags) runs(ctx context.Context, c client, runs []Run, out *printer) error {
	for i := 0; i < len(runs) || f.infinite; i++ {
		row, err := c.once(ctx, runs[min(i, len(runs)-1)])
		if err != nil {
			switch {
			case !f.infinite || i == 0:
				return err
			case cli.Interrupted(ctx):
				return nil
			case errors.Is(err, errServerGone), errors.Is(err, exchange.ErrGone), errors.Is(err, exchange.ErrRemote):
				return errStopped
			}
			return err
		}
		if err := out.row(row); err != nil {
			return err
		}
	}
	return nil
}

// errServed ends the server after its one client.
var errServed = errors.New("served")

// serve waits for one client and serves it. What is no client, or asks for
// another test, is told so and does not end the wait.
func (f *flags) serve(ctx context.Context, p *Params, out *printer) (err error) {
	if f.nic.Iface == "" {
		if f.nic.Iface, err = device.Only(); err != nil {
			return err
		}
	}
	dev, err := f.nic.Open(f.progress())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	ctx, stop := device.WhileThere(ctx, dev)
	defer stop()
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	once := &once{want: p, out: out, end: end}
	host := &Host{
		Dev: dev, Flags: &f.nic, Want: p, Gbits: f.gbits,
		Started: once.begin, Finished: func(_ *Params, _ *session.Session, row *Row) { _ = out.row(row) }, Ended: once.over,
	}
	if f.size.Bytes > 0 {
		host.Size = f.size.Int()
	}
	if f.cm {
		err = f.serveCM(ctx, host, once)
	} else {
		err = f.serveTCP(ctx, host, once)
	}
	if err != nil {
		return err
	}
	if err := context.Cause(ctx); !errors.Is(err, errServed) {
		return err
	}
	out.foot()
	return nil
}

// waiting says that a server is ready.
func (o *once) waiting(where string, port int, dev *roce.Device) {
	if info := dev.Info(); !o.out.json {
		fmt.Fprintf(o.out.w, "\n* Waiting for a client of %s on %s port %d, %s (%s) *\n\n", o.want.Op, where, port, info.Name, info.Datapath)
	}
}

func (f *flags) serveTCP(ctx context.Context, host *Host, once *once) error {
	ln, err := exchange.Listen(ctx, f.nic.Iface, f.port.N)
	if err != nil {
		return err
	}
	once.waiting("TCP", f.port.N, host.Dev)
	srv := &exchange.Server{
		Sessions: 1,
		Services: map[string]exchange.Handler{Service: host.Serve},
		Detect:   host.Greet,
		Log:      func(peer net.Addr, err error) { complain(peer, err) },
	}
	return srv.Serve(ctx, ln)
}

func (f *flags) serveCM(ctx context.Context, host *Host, once *once) error {
	l, err := host.Dev.Listen(netip.AddrPortFrom(netip.Addr{}, uint16(f.port.N)), roce.ListenOptions{})
	if err != nil {
		return err
	}
	defer l.Close()
	once.waiting("rdma_cm", f.port.N, host.Dev)
	return host.ServeCM(ctx, l, func(peer netip.AddrPort, err error) {
		if err != nil && ctx.Err() == nil {
			complain(peer, err)
		}
	})
}

func complain(peer any, err error) { fmt.Fprintf(os.Stderr, "gorxe perf: %v: %v\n", peer, err) }

// errTaken: by rdma_cm, where clients get as far as this side by side.
var errTaken = errors.New("busy with another client: try again when it has ended")

// once ends the server when a session has started and ended.
type once struct {
	want    *Params
	out     *printer
	end     context.CancelCauseFunc
	started atomic.Bool
}

func (o *once) begin(p *Params, s *session.Session, peer []exchange.QP) error {
	if p.Op != o.want.Op {
		return refuse("this server runs %s, the client asks for %s: start both with the same OP", o.want.Op, p.Op)
	}
	if o.started.Swap(true) {
		return errTaken
	}
	o.out.head(p, s, peer)
	return nil
}

func (o *once) over(err error) {
	if err == nil {
		err = errServed
	}
	o.end(err)
}

// printer shows results as columns or as JSON.
type printer struct {
	w           io.Writer
	json, gbits bool
	headed      bool
}

func (o *printer) head(p *Params, s *session.Session, peer []exchange.QP) {
	if !o.json && !o.headed {
		printHead(o.w, p, s, peer, o.gbits)
	}
	o.headed = true
}

func (o *printer) row(r *Row) error {
	if o.gbits {
		r.gigabits()
	}
	if o.json {
		return cli.JSON(o.w, r)
	}
	r.print(o.w)
	return nil
}

func (o *printer) foot() {
	if !o.json && o.headed {
		fmt.Fprintln(o.w, ruler)
	}
}
