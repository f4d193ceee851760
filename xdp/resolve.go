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
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	// resolvePatience is how long Resolve waits for a neighbor if its context has no deadline. The
	// kernel sends three requests, one per second.
	resolvePatience = 3 * time.Second
	// Interval between two lookups in the neighbor table.
	neighPause    = 500 * time.Microsecond
	maxNeighPause = 20 * time.Millisecond
)

// Resolve finds the next hop towards dst from the kernel's routes and neighbor table. If the
// neighbor is unknown, it makes the kernel use ARP or neighbor discovery and waits for the answer,
// until ctx is done or for three seconds if ctx has no deadline. If src is the zero Addr, the
// routes select the source address. Errors: ErrNoRoute, ErrNoNeighbor, ErrLocal, ErrClosed, or
// ErrNoAddress if src is not an address of the interface. Resolve is safe for concurrent use.
//
// IPv6 neighbor discovery requires a link-local address on the interface.
func (p *Port) Resolve(ctx context.Context, src, dst netip.Addr) (driver.Hop, error) {
	src, dst = src.Unmap(), dst.Unmap().WithZone("")
	s := p.net.state.Load()
	switch {
	case p.closed.Load():
		return driver.Hop{}, ErrClosed
	case !dst.IsValid() || dst.IsUnspecified():
		return driver.Hop{}, fmt.Errorf("%w: cannot send to %v", ErrNoRoute, dst)
	case has(s.addrs, dst) || dst.IsLoopback():
		return driver.Hop{}, fmt.Errorf("%w: %v on %s", ErrLocal, dst, s.info.Name)
	case src.IsValid() && !has(s.addrs, src):
		return driver.Hop{},
			fmt.Errorf("%w %v: the addresses of %s are %v", ErrNoAddress, src, s.info.Name, s.addrs)
	}
	hop, next, err := p.net.route(src, dst, s)
	if err != nil {
		return driver.Hop{}, err
	}
	if dst.IsMulticast() {
		hop.MAC = multicastMAC(dst)
		return hop, nil
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, resolvePatience)
		defer cancel()
	}
	hop.MAC, err = p.net.neighbor(ctx, next, s.info.Name)
	return hop, err
}

func has(list []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Addr() == a })
}

// route asks the kernel for the route to dst over this interface. next is the address whose MAC is
// needed.
func (n *network) route(src, dst netip.Addr, s *state) (
	hop driver.Hop, next netip.Addr, err error) {
	r, err := n.routeTo(src, dst)
	switch {
	case errors.Is(err, ErrClosed):
		return hop, next, err
	case err == nil && r.Type == unix.RTN_LOCAL:
		return hop, next, fmt.Errorf("%w: %v", ErrLocal, dst)
	case err == nil && !slices.Contains(usableRoutes, r.Type):
		err = errors.New("the route does not deliver packets")
	}
	if err != nil {
		return hop, next, fmt.Errorf("%w: %v on %s: %w: check `ip route get %v oif %s`",
			ErrNoRoute, dst, s.info.Name, err, dst, s.info.Name)
	}
	hop = driver.Hop{Src: src, MTU: s.info.MTU}
	if !src.IsValid() {
		hop.Src = addrOf(r.Src)
	}
	if r.MTU > 0 {
		hop.MTU = min(hop.MTU, r.MTU)
	}
	return hop, gateway(&r, dst), nil
}

var usableRoutes = []int{unix.RTN_UNSPEC, unix.RTN_UNICAST, unix.RTN_MULTICAST, unix.RTN_ANYCAST}

func (n *network) routeTo(src, dst netip.Addr) (r netlink.Route, err error) {
	o := netlink.RouteGetOptions{OifIndex: n.index}
	if src.IsValid() {
		o.SrcAddr = src.AsSlice()
	}
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

// States of a neighbor entry with a usable MAC.
const neighUsable = netlink.NUD_REACHABLE | netlink.NUD_STALE | netlink.NUD_DELAY | netlink.NUD_PROBE | netlink.NUD_PERMANENT | netlink.NUD_NOARP

// neighbor returns the MAC of ip. If the entry is missing, it makes the kernel resolve it. A stale
// entry is used, and the kernel is asked to verify it.
func (n *network) neighbor(ctx context.Context, ip netip.Addr, name string) (bth.MAC, error) {
	for pause, first := neighPause, true; ; pause, first = min(2*pause, maxNeighPause), false {
		e, err := n.lookup(ip)
		if err != nil {
			return bth.MAC{}, err
		}
		if e.State&neighUsable != 0 && len(e.HardwareAddr) == len(bth.MAC{}) {
			if e.State&netlink.NUD_STALE != 0 {
				_ = n.solicit(ip)
			}
			return bth.MAC(e.HardwareAddr), nil
		}
		if first || e.State&^netlink.NUD_FAILED == netlink.NUD_NONE {
			if err := n.solicit(ip); err != nil {
				return bth.MAC{}, fmt.Errorf("resolve neighbor %v on %s: %w", ip, name, err)
			}
		}
		select {
		case <-ctx.Done():
			return bth.MAC{}, fmt.Errorf("%w: %v on %s (%w): check that the peer is up and on this network",
				ErrNoNeighbor, ip, name, ctx.Err())
		case <-time.After(pause):
		}
	}
}

// lookup returns the neighbor entry of ip, or an entry in state NONE.
func (n *network) lookup(ip netip.Addr) (netlink.Neigh, error) {
	var list []netlink.Neigh
	err := n.query(func(h *netlink.Handle) (err error) {
		list, err = h.NeighList(n.index, family(ip))
		return err
	})
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return netlink.Neigh{}, fmt.Errorf("read neighbor table: %w", err)
	}
	for i := range list {
		if addrOf(list[i].IP) == ip {
			return list[i], nil
		}
	}
	return netlink.Neigh{State: netlink.NUD_NONE}, nil
}

func family(a netip.Addr) int {
	if a.Is4() {
		return netlink.FAMILY_V4
	}
	return netlink.FAMILY_V6
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
