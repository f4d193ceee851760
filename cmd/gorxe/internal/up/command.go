package up

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"

	"github.com/spf13/cobra"

	"github.com/gorxe/gorxe/cmd/gorxe/internal/perf"
	"github.com/gorxe/gorxe/cmd/gorxe/internal/ping"
	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/device"
	"github.com/gorxe/gorxe/internal/exchange"
	"github.com/gorxe/gorxe/internal/perftest"
	"github.com/gorxe/gorxe/internal/rping"
	"github.com/gorxe/gorxe/internal/session"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/xdp"
)

// memory bounds what the buffers of all sessions take together.
const memory = 1 << 30

type flags struct {
	nic  device.Flags
	port cli.Int
	json bool
}

// Command is "gorxe up".
func Command() *cobra.Command {
	f := new(flags)
	cmd := &cobra.Command{
		Use:   "up IFACE",
		Short: "Make an interface an RDMA NIC, in the foreground",
		Long: `Make an interface an RDMA NIC, in the foreground.

It takes the interface's RoCEv2 packets (UDP port 4791) and leaves all other traffic to the
kernel. It prints the GIDs, the path MTU and the XDP mode, answers 'gorxe ping' and 'gorxe perf'
from other hosts, and from any RDMA host rping (over rdma_cm, port 7174) and perftest (ib_write_bw and
its siblings, port 18515), and with Ctrl-C or SIGTERM prints its counters and detaches.`,
		Example: `  gorxe up eth0

  # from another host
  gorxe ping 10.0.0.2
  gorxe perf write-bw 10.0.0.2

  # from a host with the kernel's RDMA
  rping -c -a 10.0.0.2 -C 10
  ib_write_bw -x 1 10.0.0.2

  # in the driver, even where auto would choose otherwise; state and counters as JSON
  gorxe up eth0 --mode native --json`,
		Args: cli.Named("IFACE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			f.nic.Iface = args[0]
			return f.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f.port = cli.Int{N: exchange.DefaultPort, Min: 1, Max: 65535}
	fs := cmd.Flags()
	f.nic.Register(fs)
	f.nic.RegisterWindow(fs)
	f.nic.RegisterGID(fs, "x")
	fs.VarP(&f.port, "port", "p", "TCP port on which ping asks for a session; perf may, too, beside port 18515")
	fs.BoolVar(&f.json, "json", false, "print what happens as lines of JSON")
	return cmd
}

func (f *flags) run(ctx context.Context, out, diag io.Writer) (err error) {
	dev, err := f.nic.Open(roce.Auto)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	ports, err := f.listen(ctx)
	if err != nil {
		return err
	}
	show := &shower{out: out, diag: diag, json: f.json}
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, stop := device.WhileThere(ctx, dev)
	defer stop()
	rpings := &rping.Server{Dev: dev, Log: show.rping}
	rl, err := rpings.Listen(rping.DefaultPort)
	if err != nil {
		return err
	}
	pl, err := dev.Listen(netip.AddrPortFrom(netip.Addr{}, perftest.DefaultPort), roce.ListenOptions{})
	if err != nil {
		return err
	}
	budget := session.NewBudget(memory)
	perfs := &perf.Host{Dev: dev, Flags: &f.nic, Budget: budget}
	pings := &ping.Host{Dev: dev, Flags: &f.nic, Budget: budget}
	wg.Go(func() { _ = rpings.Serve(ctx, rl) })
	wg.Go(func() { _ = perfs.ServeCM(ctx, pl, show.perftest) })
	show.up(dev, f.port.N)
	wg.Go(func() { follow(ctx, dev, show) })

	if err := serve(ctx, server(pings, perfs, show), ports); err != nil {
		return err
	}
	gone := errors.Is(context.Cause(ctx), xdp.ErrGone)
	show.down(dev, gone)
	if gone {
		return context.Cause(ctx)
	}
	return nil
}

// listen opens the ports of ping and of perf.
func (f *flags) listen(ctx context.Context) ([]net.Listener, error) {
	ports := []int{f.port.N}
	if f.port.N != perftest.DefaultPort {
		ports = append(ports, perftest.DefaultPort)
	}
	var lns []net.Listener
	for _, p := range ports {
		ln, err := exchange.Listen(ctx, f.nic.Iface, p)
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

// serve serves all ports until ctx ends or one of them fails.
func serve(ctx context.Context, s *exchange.Server, ports []net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make(chan error)
	for _, ln := range ports {
		go func() {
			err := s.Serve(ctx, ln)
			cancel()
			errs <- err
		}()
	}
	var err error
	for range ports {
		err = errors.Join(err, <-errs)
	}
	return err
}

// server answers ping and perf.
func server(pings *ping.Host, perfs *perf.Host, show *shower) *exchange.Server {
	return &exchange.Server{
		Services: map[string]exchange.Handler{
			ping.Service: show.served(ping.Service, pings.Serve),
			perf.Service: show.served(perf.Service, perfs.Serve),
		},
		Detect: show.greeted(perfs.Greet),
		Log:   func(peer net.Addr, err error) { show.failed(peer, err) },
	}
}

// follow tells of what happens to the interface, until ctx ends.
func follow(ctx context.Context, dev *roce.Device, show *shower) {
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-dev.Events():
			tell(dev, e.Kind, show)
		}
	}
}

func tell(dev *roce.Device, kind roce.EventKind, show *shower) {
	info := dev.Info()
	switch kind {
	case roce.EventPortActive:
		show.event("link-up", fmt.Sprintf("%s: the link is up again", info.Name))
	case roce.EventPortErr:
		show.event("link-down", fmt.Sprintf("%s: the link is down; waiting for it", info.Name))
	case roce.EventMTUChange:
		show.event("mtu", fmt.Sprintf("%s: MTU %d, path MTU %d from now on", info.Name, info.MTU, info.ActiveMTU))
	case roce.EventGIDChange:
		show.gids(dev)
	}
}
