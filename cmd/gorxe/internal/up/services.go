package up

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/device"
	"github.com/gorxe/gorxe/internal/exchange"
	"github.com/gorxe/gorxe/internal/guard"
	"github.com/gorxe/gorxe/internal/perf"
	"github.com/gorxe/gorxe/internal/perf/stock"
	"github.com/gorxe/gorxe/internal/perftest"
	"github.com/gorxe/gorxe/internal/ping"
	"github.com/gorxe/gorxe/internal/rping"
	"github.com/gorxe/gorxe/internal/session"
	"github.com/gorxe/gorxe/roce"
)

const (
	// memory is the limit for the buffers of all sessions together.
	memory = 1 << 30
	// maxRun is the limit of one run of perf or perftest.
	maxRun = time.Hour
)

// The services, and the word for none of them.
const (
	servicePing  = ping.Service
	servicePerf  = perf.Service // also for perftest
	serviceRping = "rping"
	noServices   = "none"
)

var allServices = []string{servicePing, servicePerf, serviceRping}

// serviceList is the value of the flag --services.
type serviceList []string

// Set implements pflag.Value.
func (s *serviceList) Set(text string) error {
	*s = nil
	if text == noServices {
		return nil
	}
	for name := range strings.SplitSeq(text, ",") {
		name = strings.TrimSpace(name)
		if name == noServices {
			return cli.Usagef("%q is not a list of services: %s turns all of them off, write it alone",
				text, noServices)
		}
		if !slices.Contains(allServices, name) {
			return cli.Usagef("no service is called %q: choose some of %s, or %s", name,
				strings.Join(allServices, ","), noServices)
		}
		*s = append(*s, name)
	}
	return nil
}

// String implements pflag.Value.
func (s *serviceList) String() string {
	if len(*s) == 0 {
		return noServices
	}
	return strings.Join(*s, ",")
}

// Type implements pflag.Value.
func (s *serviceList) Type() string { return "list" }

// describe lists the services and their ports for the user.
func (s *serviceList) describe(port int) string {
	var parts []string
	if s.has(servicePing) || s.has(servicePerf) {
		what := "gorxe ping and gorxe perf"
		switch {
		case !s.has(servicePerf):
			what = "gorxe ping"
		case !s.has(servicePing):
			what = "gorxe perf"
		}
		parts = append(parts, fmt.Sprintf("%s on TCP port %d", what, port))
	}
	if s.has(servicePerf) {
		parts = append(parts, fmt.Sprintf("perftest on port %d (TCP and rdma_cm)",
			perftest.DefaultPort))
	}
	if s.has(serviceRping) {
		parts = append(parts, fmt.Sprintf("rping on rdma_cm port %d", rping.DefaultPort))
	}
	if parts == nil {
		return "no clients"
	}
	return strings.Join(parts, ", ")
}

func (s *serviceList) has(name string) bool { return slices.Contains(*s, name) }

// services answers the clients of the chosen services.
type services struct {
	list  serviceList
	dev   *roce.Device
	gid   device.GIDIndex
	guard *guard.Guard
	show  *printer

	tcp     []net.Listener
	rping   *roce.Listener // nil: the service is off
	perf    *roce.Listener // nil: the service is off
	rpings  *rping.Server
	perfs   *stock.Server
	overTCP *exchange.Server
}

// listen opens the ports of the services. iface is the interface for the TCP ports and port is the
// one for gorxe's clients.
func (s *services) listen(ctx context.Context, iface string, port int) (err error) {
	defer func() {
		if err != nil {
			for _, l := range s.tcp {
				l.Close()
			}
		}
	}()
	s.create()
	for _, p := range s.tcpPorts(port) {
		l, err := exchange.Listen(ctx, iface, p)
		if err != nil {
			return err
		}
		s.tcp = append(s.tcp, l)
	}
	if s.list.has(serviceRping) {
		if s.rping, err = s.rpings.Listen(rping.DefaultPort); err != nil {
			return err
		}
	}
	if s.list.has(servicePerf) {
		any := netip.AddrPortFrom(netip.Addr{}, perftest.DefaultPort)
		s.perf, err = s.dev.Listen(any, roce.ListenOptions{})
	}
	return err
}

// tcpPorts returns the TCP ports of the chosen services.
func (s *services) tcpPorts(port int) (list []int) {
	if s.list.has(servicePing) || s.list.has(servicePerf) {
		list = append(list, port)
	}
	if s.list.has(servicePerf) && port != perftest.DefaultPort {
		list = append(list, perftest.DefaultPort)
	}
	return list
}

// create creates the servers.
func (s *services) create() {
	budget := session.NewBudget(memory)
	s.rpings = &rping.Server{Dev: s.dev, Guard: s.guard, Idle: session.IdleTimeout,
		Log: s.show.rpingEnded}
	pings := &ping.Host{Dev: s.dev, GID: s.gid, Budget: budget, Idle: session.IdleTimeout}
	s.perfs = &stock.Server{Guard: s.guard, Host: perf.Host{Dev: s.dev, GID: s.gid, Budget: budget,
		Idle: session.IdleTimeout, MaxRun: maxRun}}
	s.overTCP = &exchange.Server{
		Services: map[string]exchange.Handler{},
		Guard:    s.guard,
		CheckGID: session.CheckGID(s.dev),
		Log:      s.guard.Limit(s.show.failed),
	}
	if s.list.has(servicePing) {
		s.overTCP.Services[ping.Service] = s.show.wrapHandler(ping.Service, pings.Serve)
	}
	if s.list.has(servicePerf) {
		s.overTCP.Services[perf.Service] = s.show.wrapHandler(perf.Service, s.perfs.Serve)
		s.overTCP.Detect = s.show.wrapDetector(s.perfs.Detect)
	}
}

// serve serves clients until ctx ends or a listener fails.
func (s *services) serve(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if s.rping != nil {
		wg.Go(func() { _ = s.rpings.Serve(ctx, s.rping) })
	}
	if s.perf != nil {
		wg.Go(func() { _ = s.perfs.ServeCM(ctx, s.perf, s.show.perftestEnded) })
	}
	if len(s.tcp) == 0 {
		<-ctx.Done()
		return nil
	}
	errs := make(chan error)
	for _, ln := range s.tcp {
		go func() {
			err := s.overTCP.Serve(ctx, ln)
			cancel()
			errs <- err
		}()
	}
	var err error
	for range s.tcp {
		err = errors.Join(err, <-errs)
	}
	return err
}
