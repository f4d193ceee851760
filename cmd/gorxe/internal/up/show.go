package up

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/exchange"
	"github.com/gorxe/gorxe/internal/perftest"
	"github.com/gorxe/gorxe/internal/rping"
	"github.com/gorxe/gorxe/roce"
)

// line is a line of --json. Fields that its event has no use for are left out.
type line struct {
	Event    string           `json:"event"` // up, gids, link-up, link-down, mtu, session, error, down
	Device   *roce.DeviceInfo `json:"device,omitempty"`
	MAC      string           `json:"mac,omitempty"`
	GIDs     []roce.GIDEntry  `json:"gids,omitempty"`
	Port     int              `json:"port,omitempty"`
	Peer     string           `json:"peer,omitempty"`
	Service  string           `json:"service,omitempty"`
	Message  string           `json:"message,omitempty"`
	Counters *roce.Counters   `json:"counters,omitempty"`
}

// shower prints what happens. Its methods are safe for concurrent use. The
// state and the counters are the command's result and go to out, what happens
// meanwhile goes to diag; with --json all is result.
type shower struct {
	mu        sync.Mutex
	out, diag io.Writer
	json      bool
}

// print writes a line of JSON, or calls text. An output that is closed is no
// reason to take the NIC down.
func (s *shower) print(l line, text func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.json {
		_ = cli.JSON(s.out, l)
		return
	}
	text()
}

func (s *shower) up(dev *roce.Device, port int) {
	info, gids := dev.Info(), dev.GIDs()
	s.print(line{Event: "up", Device: &info, MAC: info.MAC.String(), GIDs: gids, Port: port}, func() {
		fmt.Fprintf(s.out, "%s is an RDMA NIC: %s, %s, MTU %d, path MTU %d\n",
			info.Name, info.Datapath, cli.Count(info.Queues, "queue"), info.MTU, info.ActiveMTU)
		if info.Note != "" {
			fmt.Fprintf(s.out, "Note: %s\n", info.Note)
		}
		s.gidTable(gids)
		fmt.Fprintf(s.out, "Answering gorxe ping and gorxe perf on TCP port %d, perftest on %d (rdma_cm, too), rping by rdma_cm on %d. Ctrl-C ends.\n",
			port, perftest.DefaultPort, rping.DefaultPort)
	})
}

func (s *shower) gidTable(gids []roce.GIDEntry) {
	t := cli.Table{Columns: []cli.Column{{Title: "GID", Align: cli.Right}, {Title: "address"}, {Title: "kind"}, {Title: "as GID"}}}
	for _, g := range gids {
		t.Row(g.Index, g.Addr, g.Kind, g.GID)
	}
	_ = t.Write(s.out)
}

func (s *shower) gids(dev *roce.Device) {
	gids := dev.GIDs()
	s.print(line{Event: "gids", GIDs: gids}, func() {
		fmt.Fprintln(s.out, "The interface's addresses have changed:")
		s.gidTable(gids)
	})
}

func (s *shower) event(kind, text string) {
	s.print(line{Event: kind, Message: text}, func() { fmt.Fprintln(s.diag, text) })
}

// served tells of each session that a handler gets.
func (s *shower) served(service string, h exchange.Handler) exchange.Handler {
	return func(ctx context.Context, c *exchange.Conn, request *exchange.Message) error {
		peer := c.Remote().String()
		s.print(line{Event: "session", Peer: peer, Service: service}, func() { fmt.Fprintf(s.diag, "%s for %s\n", service, peer) })
		return h(ctx, c, request)
	}
}

func (s *shower) failed(peer net.Addr, err error) {
	s.print(line{Event: "error", Peer: peer.String(), Message: err.Error()}, func() { fmt.Fprintf(s.diag, "%v: %v\n", peer, err) })
}

// down prints the counters: those that have counted something.
func (s *shower) down(dev *roce.Device, gone bool) {
	c := dev.Counters()
	s.print(line{Event: "down", Counters: &c}, func() {
		t := cli.Table{Columns: []cli.Column{{Title: "counter"}, {Title: "value", Align: cli.Right}}}
		for name, v := range c.All() {
			if v > 0 {
				t.Row(name, v)
			}
		}
		_ = t.Write(s.out)
		if !gone {
			fmt.Fprintf(s.out, "%s is an ordinary interface again.\n", dev.Info().Name)
		}
	})
}

// greeted tells of each perftest client that was served.
func (s *shower) greeted(greet greeter) greeter {
	return func(ctx context.Context, c *exchange.Conn) (func(context.Context) error, error) {
		serve, err := greet(ctx, c)
		if serve == nil {
			return nil, err
		}
		return func(ctx context.Context) error {
			err := serve(ctx)
			if err == nil {
				s.perftest(c.Remote().AddrPort(), nil) // else failed tells
			}
			return err
		}, nil
	}
}

// greeter is the type of exchange.Server.Greet.
type greeter = func(ctx context.Context, c *exchange.Conn) (serve func(context.Context) error, err error)

// rping and perftest tell how a client of theirs ended.
func (s *shower) rping(peer netip.AddrPort, err error)    { s.ended("rping", peer, err) }
func (s *shower) perftest(peer netip.AddrPort, err error) { s.ended("perftest", peer, err) }

func (s *shower) ended(service string, peer netip.AddrPort, err error) {
	if err != nil {
		s.print(line{Event: "error", Peer: peer.String(), Message: err.Error()}, func() { fmt.Fprintf(s.diag, "%s from %v: %v\n", service, peer, err) })
		return
	}
	s.print(line{Event: "session", Peer: peer.String(), Service: service}, func() { fmt.Fprintf(s.diag, "%s from %v: done\n", service, peer) })
}
