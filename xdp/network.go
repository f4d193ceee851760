//go:build linux

package xdp

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/internal/limit"
	"github.com/gorxe/gorxe/internal/osnet"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// network is the state of the interface and of the IP network around it. Two goroutines keep it up
// to date: one receives the kernel's notifications, the other does the work that they cause.
type network struct {
	index    int
	handle   *netlink.Handle // requests, in the interface's namespace
	requests *rtnl           // requests about neighbors and routes
	events   *events         // notifications
	limit    mtuLimit
	own      *ownAddrs // the addresses that the XDP program redirects
	state    atomic.Pointer[state]
	groups   membership
	probe    probeSockets
	changed  chan struct{}
	finished sync.WaitGroup // of the two goroutines
	start    time.Time

	mu     sync.RWMutex // held for writing while handle is closed
	closed bool         // guarded by mu

	// The next hops; see neighbors.go and resolve.go.
	hops          sync.Mutex // guards the fields below
	neighbors     map[netip.Addr]*neighbor
	dests         map[destKey]*dest
	callerBudget  *limit.Rate
	watcherBudget *limit.Rate
	solicitBudget *limit.Rate
	generation    atomic.Uint32 // counts what makes dests stale

	todo work // for the worker
	kick chan struct{}
	stop chan struct{}

	count struct{ neighbors, solicits, routes, routeDumps, addrDumps atomic.Uint64 }
}

// mtuLimit returns how much of an IP MTU the Port can use, and a text for Info.Note.
type mtuLimit func(mtu int) (use int, note string)

// state is a snapshot. It is not modified after it was published.
type state struct {
	info  driver.Info
	addrs []netip.Prefix
	gone  bool

	routes []netip.Prefix // destinations of routes over the interface; nil: unknown
}

// newNetwork opens the netlink sockets in the namespace of the calling thread. It subscribes to
// notifications before anything is read, so that no change is missed.
func newNetwork() (*network, error) {
	n := &network{
		start: time.Now(), changed: make(chan struct{}, 1), kick: make(chan struct{}, 1),
		stop: make(chan struct{}), neighbors: map[netip.Addr]*neighbor{},
		dests:         map[destKey]*dest{},
		callerBudget:  limit.NewRate(limit.RateConfig{Total: callerLookups}),
		watcherBudget: limit.NewRate(limit.RateConfig{Total: watcherLookups}),
		solicitBudget: limit.NewRate(limit.RateConfig{Total: solicitations}),
		limit:         func(mtu int) (int, string) { return mtu, "" },
	}
	var err error
	if n.events, err = openEvents(unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH,
		unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
		unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE,
		unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE, unix.RTNLGRP_NEXTHOP); err != nil {
		return nil, err
	}
	if n.requests, err = openRTNL(); err != nil {
		n.events.close()
		return nil, err
	}
	if n.handle, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		n.events.close()
		n.requests.close()
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	n.probe.open()
	if err = n.groups.open(); err != nil {
		n.close()
		return nil, err
	}
	// Without a limit, an answer that is lost would block the caller forever.
	if err = n.handle.SetSocketTimeout(rtnlTimeout * time.Second); err != nil {
		n.close()
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	return n, nil
}

// refresh reads link and addresses, publishes a snapshot, and reports whether it differs from the
// old one. If reading fails although the interface exists, the old snapshot remains.
func (n *network) refresh() (changed bool) {
	old := n.state.Load()
	next := *old
	l, err := n.handle.LinkByIndex(n.index)
	switch {
	case errors.As(err, new(netlink.LinkNotFoundError)):
		next.info.Up, next.gone = false, true
	case err != nil:
		return false
	default:
		next.gone = false
		n.describe(&next.info, l.Attrs())
		addrs, err := n.readAddrs(l)
		if err != nil {
			addrs.Usable = old.addrs
		}
		// Addresses that the program does not redirect are not offered as GIDs.
		next.addrs, err = n.own.setHosts(addrs.Usable, next.info.MAC)
		if errors.Is(err, ErrClosed) {
			return false
		}
		if err != nil {
			next.info.Note = joinNotes(next.info.Note, err.Error())
		}
	}
	if next.info == old.info && next.gone == old.gone && slices.Equal(next.addrs, old.addrs) {
		return false
	}
	n.state.Store(&next)
	return true
}

func joinNotes(a, b string) string {
	if a == "" {
		return b
	}
	return a + "; " + b
}

// describe sets the fields of info that may change while the Port is open.
func (n *network) describe(info *driver.Info, a *netlink.LinkAttrs) {
	info.Name = a.Name
	info.MTU, info.Note = n.limit(a.MTU)
	info.MaxFrame = info.MTU + etherLen + vlanLen
	info.Up = osnet.Running(a)
	copy(info.MAC[:], a.HardwareAddr)
}

// readAddrs lists the addresses in the order of the GID table.
func (n *network) readAddrs(l netlink.Link) (osnet.Addresses, error) {
	n.count.addrDumps.Add(1)
	return osnet.ReadAddrs(n.handle, l, func(netip.Addr) bool { return true })
}

// query runs a netlink request on behalf of any goroutine, unless the Port is closed.
func (n *network) query(f func(h *netlink.Handle) error) error {
	n.mu.RLock()
	defer n.mu.RUnlock()
	if n.closed {
		return ErrClosed
	}
	return f(n.handle)
}

// now returns the time since the network was opened.
func (n *network) now() time.Duration { return time.Since(n.start) }

// close ends the goroutines and closes the sockets.
func (n *network) close() {
	n.mu.Lock()
	again := n.closed
	n.closed = true
	n.mu.Unlock()
	if again {
		return
	}
	close(n.stop)
	n.groups.close()
	n.probe.close()
	n.events.close()
	n.finished.Wait()
	n.requests.close()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.handle.Close()
}

// Addrs lists the interface's addresses: link-local IPv6 addresses first, then IPv4, then other
// IPv6. It omits addresses that duplicate address detection has not approved. The slice is shared
// and must not be modified. Addrs is safe for concurrent use.
func (p *Port) Addrs() []netip.Prefix { return p.net.state.Load().addrs }

// Routes returns the prefixes that routes over the interface lead to, in all routing tables. It is
// nil if there are more than 16384 routes. The slice is shared and must not be modified. Routes is
// safe for concurrent use.
func (p *Port) Routes() []netip.Prefix { return p.net.state.Load().routes }

// Changed returns a channel that receives a value after a change of the interface's addresses,
// link, MTU or routes, or of a neighbor that Resolve or Find has returned. One value may report
// several changes.
func (p *Port) Changed() <-chan struct{} { return p.net.changed }
