package perf

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/device"
	"github.com/gorxe/gorxe/internal/exchange"
	"github.com/gorxe/gorxe/internal/guard"
	"github.com/gorxe/gorxe/internal/perf"
	"github.com/gorxe/gorxe/internal/perf/stock"
	"github.com/gorxe/gorxe/internal/perftest"
	"github.com/gorxe/gorxe/roce"
)

type flags struct {
	device  device.Flags
	access  guard.Flags
	confine device.Confinement
	test    perf.Options
	port    cli.Int
	cm      bool
	json    bool
	gbits   bool
}

// Command returns the command "gorxe perf".
func Command() *cobra.Command {
	f := new(flags)
	cmd := &cobra.Command{
		Use:   "perf OP [HOST]",
		Short: "Measure bandwidth or latency between two hosts that run gorxe or perftest (ib_write_bw ...)",
		Long: `Measure bandwidth or latency of one RDMA operation between two hosts.

Without HOST, gorxe is the server: it serves one client and exits. With HOST, it
is the client of a 'gorxe perf' server with the same OP, or of 'gorxe up'. The
client's flags define the test; a server needs only -d, -x and -p.

Either side may also be perftest: ib_write_bw for write-bw, ib_send_lat for
send-lat and so on, on any RDMA NIC or the kernel's rxe. gorxe recognizes it by
its first message. Give a perftest server the client's flags (-s, -n, -D, -a, -q,
-R), as perftest requires. A gorxe server finds them out by itself, except -R, and
-s above 4 KiB for write-lat. With -R, a gorxe server cannot see the end of
write-lat, and of SENDs of 2 bytes: give it the client's -n and -a, or it waits for
10 s of silence. -b and write-imm-bw need gorxe on both sides, and do not work with
-R.

By default a server accepts clients in the subnets of its interface. A client
must connect over TCP from the address of its GID, or from another address of the
same host in these subnets.

OP is one of ` + strings.Join(perf.OperationNames(), ", ") + `.

A gorxe server uses the traffic class of a gorxe client (--class), or the one that a
client with -R requests. Otherwise each side needs its own --class.

The flags and columns are those of perftest. MB are 2^20 bytes. write-lat and
send-lat show half of the round trip; read-lat and atomic-lat show the time from
post to completion. The last lines show whether both sides use selective repeat
(see --selective-repeat), what this side retransmitted, its congestion control, RTT
and window. With --json they are the field network of each row.`,
		Example: `  # bandwidth of 64 KiB WRITEs: on host A, then on host B
  gorxe perf write-bw -d eth0
  gorxe perf write-bw hostA

  # all sizes, both directions at the same time, on 4 queue pairs
  gorxe perf write-bw hostA -a -b -q 4

  # latency of 8-byte WRITEs for 5 seconds, as JSON
  gorxe perf write-lat hostA -s 8 -D 5 --json

  # how much selective repeat gains on a network with loss
  gorxe perf write-bw hostA --selective-repeat=false

  # with the kernel's RDMA: on host C 'ib_send_bw -x 1 -q 8', and here
  gorxe perf send-bw hostC -q 8`,
		Args:              cli.Named("OP", "[HOST]"),
		ValidArgsFunction: cli.CompleteFirst(perf.OperationNames()),
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.run(cmd, args)
		},
	}
	f.register(cmd.Flags())
	return cmd
}

func (f *flags) register(fs *pflag.FlagSet) {
	f.test.Register(fs)
	cli.PortVar(fs, &f.port, "port", "p", perftest.DefaultPort, "TCP port of the server")
	fs.BoolVarP(&f.cm, "rdma_cm", "R", false,
		"connect queue pairs by rdma_cm, like perftest's -R; on both sides")
	f.device.RegisterIface(fs, "that of the route to HOST, or the only usable one")
	f.device.RegisterGID(fs, "x")
	f.access.Register(fs)
	f.device.Register(fs)
	f.device.Classes.RegisterClass(fs, "traffic class, 0 to 7; 7 is the most urgent (default: 0, and "+
		"on a server that of the client)")
	f.confine.Register(fs, device.DefaultUser)
	cli.JSONVar(fs, &f.json, "print one line of JSON per row")
	fs.BoolVar(&f.gbits, "report_gbits", false,
		"show bandwidth in Gb/sec (10^9 bits) instead of MB/sec")
}

func (f *flags) run(cmd *cobra.Command, args []string) error {
	p, runs, err := f.test.Test(cmd.Flags(), args[0])
	switch {
	case err != nil:
		return cli.Usage(err)
	case f.cm && (p.Bidirectional || p.Op == "write-imm-bw"):
		return cli.Usage(errors.New("-b and write-imm-bw do not work with -R: leave out -R"))
	}
	w := cli.NewOutput(cmd.OutOrStdout())
	out := &printer{w: w, json: f.json, gbits: f.gbits}
	if len(args) == 1 {
		return w.Result(f.serve(cmd.Context(), p, out))
	}
	if err := cli.CheckClient(cmd.Flags()); err != nil {
		return err
	}
	return w.Result(f.client(cmd.Context(), args[1], p, runs, out))
}

// progress returns the kind of progress that measures best. With -R, the connection manager and the
// test use the device from two goroutines.
func (f *flags) progress() roce.Progress {
	if f.cm {
		return roce.Auto
	}
	return roce.Manual
}

// client runs the test against the server on host.
func (f *flags) client(
	ctx context.Context, host string, p *perf.Params, runs []perf.Run, out *printer,
) (err error) {
	peer, err := f.device.FindPeer(ctx, host)
	if err != nil {
		return err
	}
	dev, err := f.device.OpenContext(ctx, f.progress())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	o := stock.Options{
		All: f.test.All, Duration: f.test.Duration.D > 0, Infinite: f.test.Infinite, Gbits: f.gbits,
	}
	var c perf.Client
	if addr := netip.AddrPortFrom(peer.Addr, uint16(f.port.N)); f.cm {
		c, err = stock.DialCM(ctx, dev, f.device.GIDIndex, addr, p, o)
	} else {
		c, err = stock.Dial(ctx, dev, f.device.GIDIndex, addr.String(), p, o)
	}
	if err != nil {
		return err
	}
	defer func() { c.Close(err) }()
	out.head(p, c.Session(), c.Session().Peer)
	switch err = f.runs(ctx, c, runs, out); {
	case errors.Is(err, errStopped):
		fmt.Fprintln(os.Stderr, "gorxe perf:", err)
		err = nil
	case err == nil:
		err = c.Finish(ctx)
	}
	if err == nil {
		out.foot()
	}
	return err
}

// errStopped means that the server has ended an endless test.
var errStopped = errors.New("the server was stopped")

// runs performs the runs, or the only one again and again. Stopping either side ends an endless
// test without an error.
func (f *flags) runs(ctx context.Context, c perf.Client, runs []perf.Run, out *printer) error {
	for i := 0; i < len(runs) || f.test.Infinite; i++ {
		row, err := c.Run(ctx, runs[min(i, len(runs)-1)])
		switch {
		case err == nil:
			err = out.row(row)
		case !f.test.Infinite:
		case cli.Interrupted(ctx):
			return nil
		case i == 0:
		case errors.Is(err, stock.ErrServerGone), errors.Is(err, exchange.ErrGone),
			errors.Is(err, exchange.ErrRemote):
			return errStopped
		}
		if err != nil {
			return err
		}
	}
	return nil
}
