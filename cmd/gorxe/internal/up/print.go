package up

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"strings"
	"sync"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/exchange"
	"github.com/gorxe/gorxe/internal/guard"
	"github.com/gorxe/gorxe/roce"
)

// line is a line of --json. Fields that an event does not use are left out.
type line struct {
	// up, service, confined, metrics, gids, link-up, link-down, mtu, note, session, network,
	// warning, error, lost (the reader was too slow for Count lines), down
	Event    string           `json:"event"`
	Device   *roce.DeviceInfo `json:"device,omitempty"`
	MAC      string           `json:"mac,omitempty"`
	GIDs     []roce.GIDEntry  `json:"gids,omitzero"` // of the event gids: [] if there are none
	Port     int              `json:"port,omitempty"`
	Peer     string           `json:"peer,omitempty"`
	Service  string           `json:"service,omitempty"`
	Message  string           `json:"message,omitempty"`
	Counter  string           `json:"counter,omitempty"` // of a warning
	Count    uint64           `json:"count,omitempty"`
	Counters *roce.Counters   `json:"counters,omitempty"`
	Network  *network         `json:"network,omitempty"`

	Socket   string            `json:"socket,omitempty"`    // of the event up: of the node service
	ClassMap *roce.ClassMap    `json:"class_map,omitempty"` // of the event up
	Services []string          `json:"services,omitempty"`  // of the event up
	Allow    []netip.Prefix    `json:"allow,omitempty"`     // of the event up; none: nobody
	Deny     []netip.Prefix    `json:"deny,omitempty"`      // of the event up
	Peers    map[string]uint64 `json:"peers,omitempty"`     // counters of refused peers
}

// printer prints events. The state and the counters are the command's result and go to out; other
// events go to diag. With --json everything goes to out. It is safe for concurrent use.
type printer struct {
	mu        sync.Mutex
	out, diag io.Writer
	json      bool
	guard     *guard.Guard
}

// print writes a line of JSON, or calls text. It ignores errors, so that the device stays up if the
// output is closed.
func (s *printer) print(l line, text func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.json {
		_ = cli.JSON(s.out, l)
		return
	}
	text()
}

func (s *printer) up(dev *roce.Device, services serviceList, port int, socket string) {
	info, gids, classes := dev.Info(), dev.GIDs(), dev.ClassMap()
	s.print(line{Event: "up", Device: &info, MAC: info.MAC.String(), GIDs: gids, Port: port,
		Socket: socket, ClassMap: &classes, Services: services, Allow: s.guard.Allowed(), Deny: s.guard.Denied()},
		func() {
			fmt.Fprintf(s.out, "%s is an RDMA NIC: %s, %s, MTU %d, path MTU %d\n",
				info.Name, info.Datapath, cli.Count(info.Queues, "queue"), info.MTU, info.ActiveMTU)
			if info.PortReason != "" {
				fmt.Fprintf(s.out, "UDP sockets instead of AF_XDP: %s\n", info.PortReason)
			}
			if info.Note != "" {
				fmt.Fprintf(s.out, "Note: %s\n", info.Note)
			}
			s.gidTable(gids)
			fmt.Fprintf(s.out, "Answering %s. Ctrl-C ends gorxe.\n", services.describe(port))
			fmt.Fprintf(s.out, "Serving %v.\n", s.guard)
		})
}

func (s *printer) gidTable(gids []roce.GIDEntry) {
	t := cli.Table{Columns: []cli.Column{
		{Title: "GID", Align: cli.Right}, {Title: "address"}, {Title: "kind"}, {Title: "as GID"},
	}}
	for _, g := range gids {
		t.Row(g.Index, g.Addr, g.Kind, g.GID)
	}
	_ = t.Write(s.out)
}

func (s *printer) gids(dev *roce.Device) {
	gids := dev.GIDs()
	s.print(line{Event: "gids", GIDs: append([]roce.GIDEntry{}, gids...)}, func() {
		fmt.Fprintln(s.out, "The addresses of the interface have changed:")
		s.gidTable(gids)
	})
}

func (s *printer) event(kind, text string) {
	s.print(line{Event: kind, Message: text}, func() { fmt.Fprintln(s.diag, text) })
}

// failed prints the error of a session.
func (s *printer) failed(peer netip.AddrPort, err error) {
	s.print(line{Event: "error", Peer: peer.String(), Message: err.Error()}, func() {
		fmt.Fprintf(s.diag, "%v: %v\n", peer, err)
	})
}

// down prints the counters that are not 0.
func (s *printer) down(dev *roce.Device, gone bool) {
	c := dev.Counters()
	s.print(line{Event: "down", Counters: &c, Peers: maps.Collect(s.guard.Counts())}, func() {
		t := cli.Table{Columns: []cli.Column{{Title: "counter"},
			{Title: "value", Align: cli.Right}}}
		oneClass := c.Classes[0].SentPkts == c.SentPkts
		for name, v := range c.All() {
			if v > 0 && !(oneClass && strings.HasPrefix(name, "class0_")) {
				t.Row(name, v)
			}
		}
		for name, v := range s.guard.Counts() {
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

// wrapHandler returns a handler that prints each session before it calls h.
func (s *printer) wrapHandler(service string, h exchange.Handler) exchange.Handler {
	return func(ctx context.Context, c *exchange.Conn, request *exchange.Message) error {
		if s.guard.ShowSession(c.Remote().AddrPort().Addr()) {
			peer := c.Remote().String()
			s.print(line{Event: "session", Peer: peer, Service: service}, func() {
				fmt.Fprintf(s.diag, "%s for %s\n", service, peer)
			})
		}
		return h(ctx, c, request)
	}
}

// wrapDetector returns a detector that prints each perftest client that was served.
func (s *printer) wrapDetector(detect exchange.Detector) exchange.Detector {
	return func(ctx context.Context, c *exchange.Conn) (func(context.Context) error, error) {
		serve, err := detect(ctx, c)
		if serve == nil {
			return nil, err
		}
		return func(ctx context.Context) error {
			err := serve(ctx)
			if err == nil { // the server logs errors
				s.perftestEnded(c.Remote().AddrPort(), nil)
			}
			return err
		}, nil
	}
}

func (s *printer) rpingEnded(peer netip.AddrPort, err error)    { s.ended("rping", peer, err) }
func (s *printer) perftestEnded(peer netip.AddrPort, err error) { s.ended("perftest", peer, err) }

// ended prints how the session of a client has ended.
func (s *printer) ended(service string, peer netip.AddrPort, err error) {
	if err != nil {
		s.guard.Count(guard.Failed)
		s.guard.Limit(func(peer netip.AddrPort, err error) {
			s.print(line{Event: "error", Peer: peer.String(), Message: err.Error()}, func() {
				fmt.Fprintf(s.diag, "%s from %v: %v\n", service, peer, err)
			})
		})(peer, err)
		return
	}
	if !s.guard.ShowSession(peer.Addr()) {
		return
	}
	s.print(line{Event: "session", Peer: peer.String(), Service: service}, func() {
		fmt.Fprintf(s.diag, "%s from %v: done\n", service, peer)
	})
}
