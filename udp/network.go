package udp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/internal/osnet"
	"github.com/gorxe/gorxe/internal/udpmsg"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

const (
	// maxAddrs limits the addresses of a Port. Each has a socket.
	maxAddrs = 64
	// requestTimeout limits the wait for the kernel's answer, which comes at once.
	requestTimeout = time.Second
	// settle is the shortest time between two looks at the interface, so that a flood of
	// notifications costs little.
	settle = 20 * time.Millisecond
	// refreshRetry is the time until the next look if a part of one has failed.
	refreshRetry = time.Second
)

// network is the state of the interface. One goroutine follows the kernel's notifications.
type network struct {
	index  int
	ns     int          // file descriptor of the network namespace; 0: that of the process
	only   []netip.Addr // the addresses to use; empty: all
	handle *netlink.Handle
	events *nl.NetlinkSocket
	state  atomic.Pointer[state]
	note   atomic.Pointer[string] // set by the owner
	shared bool                   // see Options.Shared
	from   Provider               // nil: the Port opens its sockets itself
	base   driver.Info            // what does not change

	changed  chan struct{}
	stop     chan struct{}
	finished sync.WaitGroup

	mu     sync.RWMutex // held for writing while handle is closed
	closed bool         // guarded by mu
	groups map[netip.Addr]*socket
}

// state is a snapshot. It is not modified after it was published.
type state struct {
	info  driver.Info
	addrs []netip.Prefix
	gone  bool
	err   error // of the Provider
}

// openNetwork opens the netlink sockets in the namespace of the calling thread. It subscribes to
// notifications before anything is read, so that no change is missed.
func openNetwork() (*network, error) {
	n := &network{changed: make(chan struct{}, 1), stop: make(chan struct{}),
		groups: map[netip.Addr]*socket{}}
	var err error
	if n.events, err = nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK,
		unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR); err != nil {
		return nil, fmt.Errorf("subscribe to netlink: %w", err)
	}
	if n.handle, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		n.events.Close()
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	if err = n.handle.SetSocketTimeout(requestTimeout); err != nil {
		n.events.Close()
		n.handle.Close()
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	return n, nil
}

func (n *network) close() {
	n.mu.Lock()
	again := n.closed
	n.closed = true
	n.mu.Unlock()
	if again {
		return
	}
	close(n.stop)
	if n.from != nil {
		n.from.Close()
		n.finished.Wait()
		return
	}
	n.events.Close()
	n.finished.Wait()
	n.handle.Close()
	if n.ns > 0 {
		_ = unix.Close(n.ns)
	}
}

// query runs a netlink request, unless the Port is closed.
func (n *network) query(f func(h *netlink.Handle) error) error {
	n.mu.RLock()
	defer n.mu.RUnlock()
	if n.closed {
		return driver.ErrClosed
	}
	return f(n.handle)
}

func (n *network) info() driver.Info {
	info := n.state.Load().info
	if s := n.note.Load(); s != nil {
		info.Note = joinNotes(info.Note, *s)
	}
	return info
}

func joinNotes(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + "; " + b
}

// setNote adds a text to Info.Note. Owner only.
func (n *network) setNote(text string) {
	if s := n.note.Load(); s != nil {
		text = joinNotes(*s, text)
	}
	n.note.Store(&text)
	n.notify()
}

func (n *network) notify() {
	select {
	case n.changed <- struct{}{}:
	default:
	}
}

// watch follows notifications until close.
func (p *Port) watch() {
	n := p.net
	if n.from != nil {
		n.finished.Go(p.follow)
		return
	}
	kick := make(chan struct{}, 1)
	n.finished.Add(2)
	go func() {
		defer n.finished.Done()
		for {
			// An error other than that of a closed socket means that notifications were lost.
			_, _, err := n.events.Receive()
			select {
			case <-n.stop:
				return
			case kick <- struct{}{}:
			default:
			}
			if err != nil {
				n.pause()
			}
		}
	}()
	go func() {
		defer n.finished.Done()
		var again <-chan time.Time
		for {
			select {
			case <-n.stop:
				return
			case <-kick:
			case <-again:
			}
			changed, whole := p.refresh()
			if changed {
				n.notify()
			}
			again = nil
			if !whole {
				again = time.After(refreshRetry)
			}
			n.pause()
		}
	}()
}

func (n *network) pause() {
	select {
	case <-n.stop:
	case <-time.After(settle):
	}
}

// refresh reads link and addresses, opens and closes sockets, publishes a snapshot, and reports
// whether it differs from the old one. It is not whole if something failed that may work later: the
// kernel did not answer, or another program has the port of an address.
func (p *Port) refresh() (changed, whole bool) {
	n := p.net
	old := n.state.Load()
	next := *old
	l, err := n.handle.LinkByIndex(n.index)
	switch {
	case errors.As(err, new(netlink.LinkNotFoundError)):
		next.info.Up, next.gone, whole = false, true, true
	case err != nil:
		return false, false
	default:
		next.gone = false
		n.describe(&next.info, l.Attrs())
		found, err := n.readAddrs(l)
		if err != nil {
			return false, false
		}
		used, note := limit(found.Usable)
		next.info.Note = note
		if !slices.Equal(used, old.addrs) {
			next.addrs = p.setAddrs(used, &next.info)
		}
		whole = slices.Equal(used, next.addrs)
	}
	if next.info == old.info && next.gone == old.gone && slices.Equal(next.addrs, old.addrs) {
		return false, whole
	}
	n.state.Store(&next)
	return true, whole
}

// setAddrs opens and closes sockets, so that there is one for each address, and returns the
// addresses that have one.
func (p *Port) setAddrs(want []netip.Prefix, info *driver.Info) (set []netip.Prefix) {
	p.change(func(old []*socket) (socks []*socket) {
		for _, a := range want {
			if find(socks, a.Addr()) != nil { // an address with several prefixes
				set = append(set, a)
				continue
			}
			s := find(old, a.Addr())
			if s == nil {
				var err error
				if s, err = p.net.open(a.Addr()); err != nil {
					info.Note = joinNotes(info.Note, err.Error())
					continue
				}
			}
			socks = append(socks, s)
			set = append(set, a)
		}
		for _, s := range old {
			if s.group || s.parent != nil && slices.Contains(socks, s.parent) {
				socks = append(socks, s)
			}
		}
		return socks
	})
	return set
}

func find(list []*socket, a netip.Addr) *socket {
	i := slices.IndexFunc(list, func(s *socket) bool { return s.addr == a })
	if i < 0 {
		return nil
	}
	return list[i]
}

// open opens a socket in the interface's namespace.
func (n *network) open(a netip.Addr) (s *socket, err error) {
	if n.from != nil {
		return n.openProvided(a)
	}
	err = osnet.In(n.ns, func() error {
		s, err = openSocket(a, n.index, n.shared)
		return err
	})
	return s, err
}

// describe sets the fields of info that may change while the Port is open.
func (n *network) describe(info *driver.Info, a *netlink.LinkAttrs) {
	*info = n.base
	info.Name = a.Name
	info.MTU = a.MTU
	info.MaxFrame = min(a.MTU, maxPacket) + etherLen
	info.Up = osnet.Running(a)
}

// macOf returns the MAC of the interface, or an address made of the first IP address if the
// interface has none or the Port uses only some of its addresses: the connection manager needs
// different ones for different devices.
func (n *network) macOf(a *netlink.LinkAttrs, first netip.Addr) (m bth.MAC) {
	copy(m[:], a.HardwareAddr)
	if m == (bth.MAC{}) || len(n.only) > 0 {
		b := first.As16()
		m = bth.MAC{2, 0, b[12], b[13], b[14], b[15]}
	}
	return m
}

// limit returns the addresses that a Port uses, and a note if it leaves out others.
func limit(list []netip.Prefix) (used []netip.Prefix, note string) {
	if len(list) <= maxAddrs {
		return list, ""
	}
	return list[:maxAddrs], fmt.Sprintf("only the first %d of %d addresses are used: to use another "+
		"one, name it instead of the interface", maxAddrs, len(list))
}

// readAddrs lists the addresses that the Port can use in the order of the GID table.
func (n *network) readAddrs(l netlink.Link) (a osnet.Addresses, err error) {
	a, err = osnet.ReadAddrs(n.handle, l, func(ip netip.Addr) bool {
		return len(n.only) == 0 || slices.Contains(n.only, ip)
	})
	if err != nil {
		return a, err
	}
	if l.Attrs().RawFlags&unix.IFF_LOOPBACK != 0 {
		a.Usable = n.addLoopback(a.Usable)
	}
	return a, nil
}

// addLoopback adds requested addresses of 127.0.0.0/8, all of which belong to the loopback
// interface, although it lists only one.
func (n *network) addLoopback(list []netip.Prefix) []netip.Prefix {
	const bits = 8
	for _, a := range n.only {
		p := netip.PrefixFrom(a, bits)
		if a.Is4() && a.IsLoopback() && !slices.ContainsFunc(list,
			func(q netip.Prefix) bool { return q.Addr() == a }) {
			list = append(list, p)
		}
	}
	return list
}

// Resolve asks the kernel for the route to dst and returns its MTU and, if src is the zero Addr,
// its source address. The MAC is zero, except that of a multicast group, because the kernel finds
// the neighbor itself. The addresses of this host are reachable, those of the Port included.
//
// Errors: driver.ErrNoRoute, driver.ErrNoAddress if src is none, driver.ErrClosed. Resolve does not
// wait for other hosts.
func (p *Port) Resolve(ctx context.Context, src, dst netip.Addr) (driver.Hop, error) {
	src, dst = src.Unmap(), dst.Unmap().WithZone("")
	n := p.net
	if n.from != nil {
		return n.from.Resolve(ctx, src, dst)
	}
	s := n.state.Load()
	own := func(a netip.Addr) bool {
		return slices.ContainsFunc(s.addrs, func(q netip.Prefix) bool { return q.Addr() == a })
	}
	switch {
	case !dst.IsValid() || dst.IsUnspecified():
		return driver.Hop{}, fmt.Errorf("%w: cannot send to %v", driver.ErrNoRoute, dst)
	case src.IsValid() && !own(src):
		return driver.Hop{},
			fmt.Errorf("%w %v: the addresses of %s are %v", driver.ErrNoAddress, src,
				s.info.Name, s.addrs)
	}
	hop := driver.Hop{Src: src, MTU: s.info.MTU}
	var o netlink.RouteGetOptions
	if src.IsValid() {
		o.SrcAddr = src.AsSlice()
	}
	if dst.IsMulticast() || udpmsg.Scoped(dst) {
		o.OifIndex = n.index
	}
	err := n.query(func(h *netlink.Handle) error {
		routes, err := h.RouteGetWithOptions(dst.AsSlice(), &o)
		if err == nil && len(routes) == 0 {
			err = unix.ENETUNREACH
		}
		if err != nil {
			return err
		}
		r := &routes[0]
		if !src.IsValid() {
			hop.Src = addrOf(r.Src)
		}
		if r.MTU > 0 {
			hop.MTU = min(hop.MTU, r.MTU)
		}
		if r.LinkIndex == n.index {
			return nil
		}
		l, err := h.LinkByIndex(r.LinkIndex)
		if err == nil {
			hop.MTU = min(hop.MTU, l.Attrs().MTU)
		}
		return err
	})
	if errors.Is(err, driver.ErrClosed) {
		return driver.Hop{}, err
	}
	if err != nil {
		from := ""
		if src.IsValid() {
			from = fmt.Sprintf(" from %v", src)
		}
		return driver.Hop{}, fmt.Errorf("%w: %v%s: %w: check `ip route get %[2]v%[3]s`",
			driver.ErrNoRoute, dst, from, err)
	}
	if dst.IsMulticast() {
		copy(hop.MAC[:], multicastMAC(dst))
	}
	return hop, nil
}

func addrOf(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}
