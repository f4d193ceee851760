//go:build linux

package xdp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/internal/limit"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	// resolvePatience is how long Resolve waits for a neighbor if its context has no deadline. The
	// kernel sends three requests, one per second.
	resolvePatience = 3 * time.Second
	// resolveRetry is how long Resolve waits for a notification before it reads the neighbor's
	// entry and solicits it again.
	resolveRetry = time.Second
	// limitPause is how long Resolve waits when the limit of lookups is reached.
	limitPause = 10 * time.Millisecond
)

// Resolve finds the next hop towards dst from the kernel's routes and neighbor table. If the
// neighbor is unknown, it makes the kernel use ARP or neighbor discovery and waits for the answer,
// until ctx is done or for three seconds if ctx has no deadline. If src is the zero Addr, the
// routes select the source address. Errors: ErrNoRoute, ErrNoNeighbor, ErrLocal, ErrClosed, or
// ErrNoAddress if src is not an address of the interface. Resolve is safe for concurrent use.
//
// The number of lookups per second is limited, for all callers together, so that peers cannot use
// up a CPU by connecting. IPv6 neighbor discovery requires a link-local address on the interface.
func (p *Port) Resolve(ctx context.Context, src, dst netip.Addr) (driver.Hop, error) {
	src, dst = src.Unmap(), dst.Unmap().WithZone("")
	s, err := p.checkDest(src, dst)
	if err != nil {
		return driver.Hop{}, err
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, resolvePatience)
		defer cancel()
	}
	if err := p.net.awaitBudget(ctx, p.net.callerBudget); err != nil {
		return driver.Hop{}, fmt.Errorf("%w: %v on %s (%w): too many lookups", ErrNoRoute, dst,
			s.info.Name, err)
	}
	d, err := p.net.route(src, dst, s)
	if err != nil {
		return driver.Hop{}, removed(err)
	}
	if dst.IsMulticast() {
		d.hop.MAC = multicastMAC(dst)
		return d.hop, nil
	}
	d.hop.MAC, err = p.net.awaitNeighbor(ctx, d.next, s.info.Name)
	return d.hop, removed(err)
}

// removed adds ErrGone to the kernel's error for an interface that does not exist.
func removed(err error) error {
	if errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("%w: %w", ErrGone, err)
	}
	return err
}

// Find returns the next hop towards dst if it is known; see driver.Finder. It never waits for
// packets. If nothing has changed since the last call, it makes no system call.
func (p *Port) Find(src, dst netip.Addr) (driver.Hop, bool) {
	src, dst = src.Unmap(), dst.Unmap().WithZone("")
	s, err := p.checkDest(src, dst)
	if err != nil {
		return driver.Hop{}, false
	}
	d, ok := p.net.findRoute(src, dst, s)
	if !ok {
		return driver.Hop{}, false
	}
	if dst.IsMulticast() {
		d.hop.MAC = multicastMAC(dst)
		return d.hop, true
	}
	d.hop.MAC, ok = p.net.findNeighbor(d.next)
	return d.hop, ok
}

// checkDest checks the arguments of Resolve and Find.
func (p *Port) checkDest(src, dst netip.Addr) (*state, error) {
	s := p.net.state.Load()
	switch {
	case p.closed.Load():
		return nil, ErrClosed
	case !dst.IsValid() || dst.IsUnspecified():
		return nil, fmt.Errorf("%w: cannot send to %v", ErrNoRoute, dst)
	case has(s.addrs, dst) || dst.IsLoopback():
		return nil, fmt.Errorf("%w: %v on %s", ErrLocal, dst, s.info.Name)
	case src.IsValid() && !has(s.addrs, src):
		return nil,
			fmt.Errorf("%w %v: the addresses of %s are %v", ErrNoAddress, src, s.info.Name, s.addrs)
	}
	return s, nil
}

func has(list []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Addr() == a })
}

// destKey identifies a destination.
type destKey struct{ src, dst netip.Addr }

// dest is the route to a destination, which is kept until the routes towards it change.
type dest struct {
	hop   driver.Hop // without the MAC
	next  netip.Addr // the address whose MAC is needed
	stale bool       // the route may have changed
	used  time.Duration
}

// findRoute returns the route to dst. If it may have changed and the limit of lookups is reached,
// it returns the old one and makes the watcher announce another change later.
func (n *network) findRoute(src, dst netip.Addr, s *state) (dest, bool) {
	n.hops.Lock()
	known := n.dests[destKey{src, dst}]
	if known != nil {
		known.used = n.now()
		if !known.stale {
			defer n.hops.Unlock()
			return *known, true
		}
	}
	if !n.watcherBudget.Allow(int64(n.now()), netip.Addr{}, 1) {
		n.announceLater()
		defer n.hops.Unlock()
		if known == nil {
			return dest{}, false
		}
		return *known, true
	}
	n.hops.Unlock()
	d, err := n.route(src, dst, s)
	return d, err == nil
}

// route asks the kernel for the route to dst over this interface.
func (n *network) route(src, dst netip.Addr, s *state) (d dest, err error) {
	generation := n.generation.Load()
	r, err := n.routeTo(src, dst)
	switch {
	case errors.Is(err, ErrClosed):
		return d, err
	case err == nil && r.Type == unix.RTN_LOCAL:
		return d, fmt.Errorf("%w: %v", ErrLocal, dst)
	case err == nil && !slices.Contains(usableRoutes, r.Type):
		err = errors.New("the route does not deliver packets")
	}
	if err != nil {
		return d, fmt.Errorf("%w: %v on %s: %w: check `ip route get %v oif %s`",
			ErrNoRoute, dst, s.info.Name, err, dst, s.info.Name)
	}
	d.hop = driver.Hop{Src: src, MTU: s.info.MTU}
	if !src.IsValid() {
		d.hop.Src = addrOf(r.Src)
	}
	if r.MTU > 0 {
		d.hop.MTU = min(d.hop.MTU, r.MTU)
	}
	d.next, d.used = gateway(&r, dst), n.now()
	// A change that the worker has handled meanwhile may concern this route.
	d.stale = n.generation.Load() != generation

	n.hops.Lock()
	defer n.hops.Unlock()
	key := destKey{src, dst}
	if n.dests[key] == nil && len(n.dests) >= maxDests {
		dropOne(n.dests)
	}
	kept := d
	n.dests[key] = &kept
	return d, nil
}

var usableRoutes = []int{unix.RTN_UNSPEC, unix.RTN_UNICAST, unix.RTN_MULTICAST, unix.RTN_ANYCAST}

func (n *network) routeTo(src, dst netip.Addr) (r netlink.Route, err error) {
	o := netlink.RouteGetOptions{OifIndex: n.index}
	if src.IsValid() {
		o.SrcAddr = src.AsSlice()
	}
	n.count.routes.Add(1)
	err = n.query(func(h *netlink.Handle) error {
		if dst.Is4() && !dst.IsMulticast() {
			// If the interface is given, the kernel treats an IPv4 address without a route as a
			// neighbor. FIBMatch asks for the entry of the routing table and fails if there is
			// none.
			match := o
			match.FIBMatch = true
			if _, err := h.RouteGetWithOptions(dst.AsSlice(), &match); err != nil {
				return err
			}
		}
		routes, err := h.RouteGetWithOptions(dst.AsSlice(), &o)
		if err == nil && len(routes) == 0 {
			err = unix.ENETUNREACH
		}
		if err == nil {
			r = routes[0]
		}
		return err
	})
	return r, err
}

func gateway(r *netlink.Route, dst netip.Addr) netip.Addr {
	if a := addrOf(r.Gw); a.IsValid() {
		return a
	}
	if via, ok := r.Via.(*netlink.Via); ok {
		if a := addrOf(via.Addr); a.IsValid() {
			return a
		}
	}
	return dst
}

func addrOf(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}

// awaitBudget waits until a lookup is within the limit.
func (n *network) awaitBudget(ctx context.Context, budget *limit.Rate) error {
	for {
		n.hops.Lock()
		ok := budget.Allow(int64(n.now()), netip.Addr{}, 1)
		n.hops.Unlock()
		if ok {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-n.stop:
			return ErrClosed
		case <-time.After(limitPause):
		}
	}
}

// findNeighbor returns the last known MAC of ip, and makes the worker look for it if there is none.
func (n *network) findNeighbor(ip netip.Addr) (bth.MAC, bool) {
	n.hops.Lock()
	defer n.hops.Unlock()
	x := n.follow(ip)
	if allowed, err := n.refreshNeighbor(ip, x, n.watcherBudget); !allowed || err != nil {
		n.announceLater()
	}
	if !x.known && x.due == 0 {
		n.plan(x, n.now())
	}
	return x.mac, x.known
}

// awaitNeighbor returns the MAC of ip. If the kernel does not have it, it makes the kernel look for
// it, and waits for the notification.
func (n *network) awaitNeighbor(ctx context.Context, ip netip.Addr, name string) (bth.MAC, error) {
	missing := func(err error) error {
		return fmt.Errorf("%w: %v on %s (%w): check that the peer is up and on this network",
			ErrNoNeighbor, ip, name, err)
	}
	n.hops.Lock()
	defer n.hops.Unlock()
	for {
		x := n.follow(ip)
		if allowed, err := n.refreshNeighbor(ip, x, n.callerBudget); err != nil {
			return bth.MAC{}, fmt.Errorf("read the neighbor table: %w", err)
		} else if x.usable {
			return x.mac, nil
		} else if allowed && n.solicitBudget.Allow(int64(n.now()), netip.Addr{}, 1) {
			n.solicited(x, n.now())
			n.hops.Unlock()
			err := n.solicit(ip)
			n.hops.Lock()
			if err != nil {
				return bth.MAC{}, fmt.Errorf("resolve neighbor %v on %s: %w", ip, name, err)
			}
			if x.usable {
				return x.mac, nil
			}
		}
		if x.wake == nil {
			x.wake = make(chan struct{})
		}
		wake := x.wake
		n.hops.Unlock()
		var err error
		select {
		case <-wake:
		case <-ctx.Done():
			err = missing(ctx.Err())
		case <-n.stop:
			err = ErrClosed
		case <-time.After(resolveRetry):
			n.hops.Lock()
			x.check = true
			n.hops.Unlock()
		}
		n.hops.Lock()
		if err != nil {
			return bth.MAC{}, err
		}
	}
}

// multicastMAC maps a multicast address to an Ethernet address (RFC 1112, section 6.4; RFC 2464,
// section 7).
func multicastMAC(a netip.Addr) bth.MAC {
	b := a.As16()
	if a.Is4() {
		return bth.MAC{0x01, 0x00, 0x5e, b[13] & 0x7f, b[14], b[15]}
	}
	return bth.MAC{0x33, 0x33, b[12], b[13], b[14], b[15]}
}
