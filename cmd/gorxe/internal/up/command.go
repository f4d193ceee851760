package up

import (
	"context"
	"errors"
	"io"
	"sync"

	"github.com/spf13/cobra"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/device"
	"github.com/gorxe/gorxe/internal/exchange"
	"github.com/gorxe/gorxe/internal/guard"
	"github.com/gorxe/gorxe/internal/status"
	"github.com/gorxe/gorxe/roce"
)

type flags struct {
	device   device.Flags
	access   guard.Flags
	services serviceList
	confine  device.Confinement
	node     node
	log      logging
	metrics  monitoring
	version  string // of gorxe
	port     cli.Int
	json     bool
}

// Command returns the command "gorxe up".
func Command() *cobra.Command {
	f := new(flags)
	cmd := &cobra.Command{
		Use:   "up IFACE",
		Short: "Make an interface an RDMA NIC, in the foreground",
		Long: `Make an interface an RDMA NIC, in the foreground.

gorxe takes the interface's RoCEv2 packets (UDP port 4791) and leaves all other
traffic to the kernel. It uses AF_XDP if permitted, and otherwise UDP sockets, which
need no privileges; --datapath chooses one. IFACE may also be one address of this host,
such as 127.0.0.1, for UDP sockets on this address only.

Other programs of this host can share the interface, its addresses and port 4791: they
join through a socket (--socket), as gorxe run and programs that open the interface with
Go package roce do by themselves. gorxe ps and gorxe top show them. When gorxe up ends,
their devices fail.

It prints the GIDs, the path MTU and the data path. It
answers 'gorxe ping' and 'gorxe perf' from other hosts, and rping (over rdma_cm,
port 7174) and perftest (ib_write_bw and related programs, port 18515) from any
RDMA host.

By default it serves peers in the subnets of the interface; see --allow, --deny
and --services. A client must connect over TCP from the address of its GID, or
from another address of the same host in these subnets. One IPv4 address or IPv6
/64 subnet gets at most half of the memory and of the sessions. A session ends
after 2 minutes without a packet, and a run of perf after 1 hour.

Sessions use the traffic class that the client chooses (--class), 0 to 7. What gorxe
sends in a higher class precedes all lower classes. --class-map sets how classes are
marked for the network. --class-config sets how classes are sent: in the order of the
work requests (fifo) or in turns (round-robin, the default), where a higher class may
interrupt a message (preempt=any, the default, after any packet; preempt=BYTES;
preempt=end), and a limit of their rate (rate=500Mb/s, burst=64k). --link-rate keeps
queues below gorxe short if the interface does not report them.

When its sockets are open, it drops its privileges (see --user) and prints what
it kept. It warns of packets that honest peers rarely send, at most once per
minute and kind, and counts the peers that it refuses. With --json it also prints an
event "network" every 5 seconds while it sends data, packets get lost, or the network
is congested: what it retransmitted, ECN marks and CNPs, and RTT, window and rate of
the fastest queue pairs. --log writes a log of connections, programs and failures to
stderr, with a limit of lines per peer and user. With Ctrl-C or SIGTERM it prints its
counters and detaches from the interface.`,
		Example: `  gorxe up eth0

  # from another host
  gorxe ping 10.0.0.2
  gorxe perf write-bw 10.0.0.2

  # from a host with the kernel's RDMA
  rping -c -a 10.0.0.2 -C 10
  ib_write_bw -x 1 10.0.0.2

  # for all of 10.0.0.0/8 except one host, and only gorxe ping and rping
  gorxe up eth0 --allow 10.0.0.0/8 --deny 10.0.0.99 --services ping,rping

  # DSCP 46 for class 7, and at most 500 Mb/s for class 0
  gorxe up eth0 --class-map 7:46 --class-config 0:rate=500Mb/s

  # status page at http://127.0.0.1:9464, metrics at http://127.0.0.1:9464/metrics
  gorxe up eth0 --metrics 9464

  # XDP in native mode, even if auto would choose otherwise; output as JSON
  gorxe up eth0 --mode native --json`,
		Args:              cli.Named("IFACE"),
		ValidArgsFunction: cli.CompleteInterface,
		RunE: func(cmd *cobra.Command, args []string) error {
			f.device.Iface = args[0]
			f.version = cmd.Root().Annotations[cli.VersionKey]
			return f.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	fs := cmd.Flags()
	f.device.Register(fs)
	f.device.Classes.RegisterConfig(fs)
	f.device.RegisterWindow(fs)
	f.device.RegisterGID(fs, "x")
	cli.PortVar(fs, &f.port, "port", "p", exchange.DefaultPort,
		"TCP port for gorxe ping; gorxe perf may use it too, or port 18515")
	f.access.Register(fs)
	f.services = allServices
	fs.Var(&f.services, "services", "services to offer: a list of ping, perf and rping, or none")
	f.confine.Register(fs, device.DefaultUser)
	f.node.register(fs)
	f.log.register(fs)
	fs.Var(&f.metrics.address, "metrics", "serve a status page, JSON and metrics of Prometheus over "+
		"HTTP at PORT of 127.0.0.1, or at ADDR:PORT (anybody who can reach it can read it)")
	cli.JSONVar(fs, &f.json, "print events as lines of JSON")
	return cmd
}

func (f *flags) run(ctx context.Context, out, diag io.Writer) (err error) {
	if err := f.log.check(); err != nil {
		return err
	}
	o := newOutput()
	defer o.close()
	out, diag = o.to(out, f.json), o.to(diag, false)
	f.device.OwnEvents = true
	dev, err := f.node.open(&f.device, f.log.options(diag))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.node.close(), dev.Close()) }()
	show := &printer{out: out, diag: diag, json: f.json, guard: f.access.Guard(dev)}
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, stop := device.WhilePresent(ctx, dev)
	defer stop()
	s := &services{list: f.services, dev: dev, gid: f.device.GIDIndex, guard: show.guard,
		show: show}
	if err := s.listen(ctx, f.device.Iface, f.port.N); err != nil {
		return err
	}
	if err := f.metrics.listen(ctx); err != nil {
		return err
	}
	defer f.metrics.close()
	manager := connectManager()
	defer manager.close()
	if f.node.server != nil {
		f.confine.Own = f.node.server.SetOwner
	}
	kept, err := f.confine.Apply()
	if err != nil {
		return err
	}
	show.up(dev, f.services, f.port.N, f.node.socket())
	show.event("service", f.node.describe())
	show.event("confined", kept)
	wg.Go(func() { followEvents(ctx, dev, show) })
	state := status.NewCollector(status.Config{Device: dev, Name: programName, Version: f.version})
	if f.node.server != nil {
		state.Serve(f.node.server)
	}
	wg.Go(func() { f.metrics.serve(ctx, state, show) })
	var w warner
	wg.Go(func() { w.run(ctx, dev, show) })
	if f.json {
		wg.Go(func() { new(monitor).run(ctx, dev, show) })
	}

	manager.notify(notifyReady)
	err = s.serve(ctx)
	manager.notify(notifyStopping)
	if err != nil {
		return err
	}
	gone := errors.Is(context.Cause(ctx), roce.ErrGone)
	w.now(dev, show)
	show.down(dev, gone)
	if gone {
		return context.Cause(ctx)
	}
	return nil
}
