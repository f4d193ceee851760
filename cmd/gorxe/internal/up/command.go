package up

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"

	"github.com/spf13/cobra"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/device"
	"github.com/gorxe/gorxe/internal/exchange"
	"github.com/gorxe/gorxe/internal/perf"
	"github.com/gorxe/gorxe/internal/perf/stock"
	"github.com/gorxe/gorxe/internal/perftest"
	"github.com/gorxe/gorxe/internal/ping"
	"github.com/gorxe/gorxe/internal/rping"
	"github.com/gorxe/gorxe/internal/session"
	"github.com/gorxe/gorxe/roce"
)

// memory is the limit for the buffers of all sessions together.
const memory = 1 << 30

type flags struct {
	device  device.Flags
	confine device.Confinement
	port    cli.Int
	json    bool
}

// Command returns the command "gorxe up".
func Command() *cobra.Command {
	f := new(flags)
	cmd := &cobra.Command{
		Use:   "up IFACE",
		Short: "Make an interface an RDMA NIC, in the foreground",
		Long: `Make an interface an RDMA NIC, in the foreground.

gorxe takes the interface's RoCEv2 packets (UDP port 4791) and leaves all other
traffic to the kernel. It prints the GIDs, the path MTU and the XDP mode. It
answers 'gorxe ping' and 'gorxe perf' from other hosts, and rping (over rdma_cm,
port 7174) and perftest (ib_write_bw and related programs, port 18515) from any
RDMA host. When its sockets are open, it drops its privileges (see --user) and
prints what it kept. It warns of packets that honest peers rarely send, at most
once per minute and kind. With Ctrl-C or SIGTERM it prints its counters and
detaches from the interface.`,
		Example: `  gorxe up eth0

  # from another host
  gorxe ping 10.0.0.2
  gorxe perf write-bw 10.0.0.2

  # from a host with the kernel's RDMA
  rping -c -a 10.0.0.2 -C 10
  ib_write_bw -x 1 10.0.0.2

  # XDP in native mode, even if auto would choose otherwise; output as JSON
  gorxe up eth0 --mode native --json`,
		Args: cli.Named("IFACE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			f.device.Iface = args[0]
			return f.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	fs := cmd.Flags()
	f.device.Register(fs)
	f.device.RegisterWindow(fs)
	f.device.RegisterGID(fs, "x")
	cli.PortVar(fs, &f.port, "port", "p", exchange.DefaultPort,
		"TCP port for gorxe ping; gorxe perf may use it too, or port 18515")
	f.confine.Register(fs, device.DefaultUser)
	cli.JSONVar(fs, &f.json, "print events as lines of JSON")
	return cmd
}

func (f *flags) run(ctx context.Context, out, diag io.Writer) (err error) {
	dev, err := f.device.Open(roce.Auto)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	listeners, err := f.listen(ctx)
	if err != nil {
		return err
	}
	show := &printer{out: out, diag: diag, json: f.json}
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, stop := device.WhilePresent(ctx, dev)
	defer stop()
	rpings := &rping.Server{Dev: dev, Log: show.rpingEnded}
	rl, err := rpings.Listen(rping.DefaultPort)
	if err != nil {
		return err
	}
	pl, err := dev.Listen(netip.AddrPortFrom(netip.Addr{}, perftest.DefaultPort),
		roce.ListenOptions{})
	if err != nil {
		return err
	}
	kept, err := f.confine.Apply()
	if err != nil {
		return err
	}
	budget := session.NewBudget(memory)
	perfs := &stock.Server{Host: perf.Host{Dev: dev, GID: f.device.GIDIndex, Budget: budget}}
	pings := &ping.Host{Dev: dev, GID: f.device.GIDIndex, Budget: budget}
	wg.Go(func() { _ = rpings.Serve(ctx, rl) })
	wg.Go(func() { _ = perfs.ServeCM(ctx, pl, show.perftestEnded) })
	show.up(dev, f.port.N)
	show.event("confined", kept)
	wg.Go(func() { followEvents(ctx, dev, show) })
	wg.Go(func() { warn(ctx, dev, show) })

	if err := serve(ctx, server(pings, perfs, show), listeners); err != nil {
		return err
	}
	gone := errors.Is(context.Cause(ctx), roce.ErrGone)
	show.down(dev, gone)
	if gone {
		return context.Cause(ctx)
	}
	return nil
}

// listen opens the TCP ports.
func (f *flags) listen(ctx context.Context) ([]net.Listener, error) {
	ports := []int{f.port.N}
	if f.port.N != perftest.DefaultPort {
		ports = append(ports, perftest.DefaultPort)
	}
	var lns []net.Listener
	for _, p := range ports {
		ln, err := exchange.Listen(ctx, f.device.Iface, p)
		if err != nil {
			for _, l := range lns {
				l.Close()
			}
			return nil, err
		}
		lns = append(lns, ln)
	}
	return lns, nil
}

// serve accepts sessions on all listeners until ctx ends or one of them fails.
func serve(ctx context.Context, s *exchange.Server, listeners []net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make(chan error)
	for _, ln := range listeners {
		go func() {
			err := s.Serve(ctx, ln)
			cancel()
			errs <- err
		}()
	}
	var err error
	for range listeners {
		err = errors.Join(err, <-errs)
	}
	return err
}

// server returns the server for gorxe ping, gorxe perf and perftest over TCP.
func server(pings *ping.Host, perfs *stock.Server, show *printer) *exchange.Server {
	return &exchange.Server{
		Services: map[string]exchange.Handler{
			ping.Service: show.wrapHandler(ping.Service, pings.Serve),
			perf.Service: show.wrapHandler(perf.Service, perfs.Serve),
		},
		Detect: show.wrapDetector(perfs.Detect),
		Log:    show.failed,
	}
}
