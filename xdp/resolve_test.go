//go:build linux

package xdp

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/xdp/veth"
	"github.com/vishvananda/netlink"
)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func addRoute(t *testing.T, e *veth.End, dst, via string, mtu int) {
	t.Helper()
	onLink(t, e, func(l netlink.Link) error {
		_, n, err := net.ParseCIDR(dst)
		if err != nil {
			return err
		}
		return netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: n,
			Gw: net.ParseIP(via), MTU: mtu})
	})
}

// Resolve finds IPv4 and IPv6 neighbors, directly and through gateways, and the source address. The
// kernel of the peer answers.
func TestResolve(t *testing.T) {
	pair := newPair(t, veth.Options{MTU: 4200})
	a, b := openEnd(t, &pair.A, Options{}), openEnd(t, &pair.B, Options{})
	addRoute(t, &pair.A, "198.51.100.0/24", "10.77.0.2", 1400)
	addRoute(t, &pair.A, "2001:db8:5::/48", "fd77::2", 0)
	lla, llb := a.Addrs()[0].Addr(), b.Addrs()[0].Addr()
	peer := bth.MAC(pair.B.MAC)
	none, mtu := netip.Addr{}, a.Info().MTU
	for _, c := range []struct {
		name     string
		src, dst netip.Addr
		want     driver.Hop
	}{
		{"IPv4 neighbor", none, hostB4, driver.Hop{MAC: peer, Src: hostA4, MTU: mtu}},
		{"IPv4 neighbor, mapped", none, addr("::ffff:10.77.0.2"),
			driver.Hop{MAC: peer, Src: hostA4, MTU: mtu}},
		{"IPv6 neighbor", none, hostB6, driver.Hop{MAC: peer, Src: hostA6, MTU: mtu}},
		{"link-local neighbor", none, llb, driver.Hop{MAC: peer, Src: lla, MTU: mtu}},
		{"link-local with a zone", none, llb.WithZone("gorxe-a"),
			driver.Hop{MAC: peer, Src: lla, MTU: mtu}},
		{"source given", lla, hostB6, driver.Hop{MAC: peer, Src: lla, MTU: mtu}},
		{"IPv4 gateway, route with an MTU", none, addr("198.51.100.77"),
			driver.Hop{MAC: peer, Src: hostA4, MTU: 1400}},
		{"IPv6 gateway", none, addr("2001:db8:5::1"), driver.Hop{MAC: peer, Src: hostA6, MTU: mtu}},
		{"IPv4 multicast", hostA4, addr("239.129.2.3"),
			driver.Hop{MAC: bth.MAC{1, 0, 0x5e, 1, 2, 3}, Src: hostA4, MTU: mtu}},
		{"IPv6 multicast", lla, addr("ff02::1:a2:b3"),
			driver.Hop{MAC: bth.MAC{0x33, 0x33, 0, 0xa2, 0, 0xb3}, Src: lla, MTU: mtu}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for range 2 { // the second time the entry exists
				got, err := a.Resolve(context.Background(), c.src, c.dst)
				if err != nil || got != c.want {
					t.Fatalf("Resolve() = %+v, %v; want %+v", got, err, c.want)
				}
			}
		})
	}
}

// Resolve distinguishes the causes of failure and respects the context's deadline.
func TestResolveFails(t *testing.T) {
	pair := newPair(t, veth.Options{})
	a := openEnd(t, &pair.A, Options{})
	for _, c := range []struct {
		name     string
		src, dst netip.Addr
		want     error
	}{
		{"own IPv4", netip.Addr{}, hostA4, ErrLocal},
		{"own IPv6", netip.Addr{}, hostA6, ErrLocal},
		{"loopback", netip.Addr{}, addr("127.0.0.1"), ErrLocal},
		{"no address", netip.Addr{}, netip.Addr{}, ErrNoRoute},
		{"unspecified", netip.Addr{}, addr("0.0.0.0"), ErrNoRoute},
		{"broadcast", netip.Addr{}, addr("10.77.0.255"), ErrNoRoute},
		{"no IPv4 route", netip.Addr{}, addr("192.0.2.1"), ErrNoRoute},
		{"no IPv6 route", netip.Addr{}, addr("2001:db8::1"), ErrNoRoute},
		{"source of another host", addr("10.77.0.99"), hostB4, ErrNoAddress},
		{"silent IPv4 neighbor", netip.Addr{}, addr("10.77.0.50"), ErrNoNeighbor},
		{"silent IPv6 neighbor", netip.Addr{}, addr("fd77::50"), ErrNoNeighbor},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
			defer cancel()
			start := time.Now()
			hop, err := a.Resolve(ctx, c.src, c.dst)
			if !errors.Is(err, c.want) {
				t.Errorf("Resolve() = %+v, %v; want %v", hop, err, c.want)
			}
			if d := time.Since(start); d > time.Second {
				t.Errorf("Resolve took %v", d)
			}
		})
	}
	a.Close()
	if _, err := a.Resolve(context.Background(), netip.Addr{}, hostB4); !errors.Is(err, ErrClosed) {
		t.Errorf("Resolve after Close: %v", err)
	}
}

// Resolve finds a peer that comes up while it waits.
func TestResolveWaits(t *testing.T) {
	pair := newPair(t, veth.Options{})
	a := openEnd(t, &pair.A, Options{})
	late := &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(10, 77, 0, 60),
		Mask: net.CIDRMask(24, 32)}}
	done := make(chan struct{})
	time.AfterFunc(50*time.Millisecond, func() {
		defer close(done)
		onLink(t, &pair.B, func(l netlink.Link) error { return netlink.AddrAdd(l, late) })
	})
	hop, err := a.Resolve(context.Background(), netip.Addr{}, addr("10.77.0.60"))
	<-done
	if err != nil || hop.MAC != bth.MAC(pair.B.MAC) {
		t.Errorf("Resolve() = %+v, %v", hop, err)
	}
}

// Changed reports a new MAC of a neighbor, so that cached hops can be resolved again.
func TestNeighborChange(t *testing.T) {
	pair := newPair(t, veth.Options{})
	a := openEnd(t, &pair.A, Options{})
	if _, err := a.Resolve(context.Background(), netip.Addr{}, hostB4); err != nil {
		t.Fatal(err)
	}
	moved := net.HardwareAddr{0x02, 0x77, 0, 0, 0, 0x99}
	onLink(t, &pair.A, func(l netlink.Link) error {
		return netlink.NeighSet(&netlink.Neigh{LinkIndex: l.Attrs().Index, IP: hostB4.AsSlice(),
			HardwareAddr: moved, State: netlink.NUD_PERMANENT})
	})
	await(t, a, "new MAC", func() bool {
		hop, err := a.Resolve(context.Background(), netip.Addr{}, hostB4)
		return err == nil && hop.MAC == bth.MAC(moved)
	})
}

// Close ends a waiting Resolve.
func TestCloseEndsResolve(t *testing.T) {
	pair := newPair(t, veth.Options{})
	a := openEnd(t, &pair.A, Options{})
	time.AfterFunc(30*time.Millisecond, func() { a.Close() })
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if _, err := a.Resolve(ctx, netip.Addr{}, addr("10.77.0.50")); !errors.Is(err, ErrClosed) {
		t.Errorf("Resolve() = %v", err)
	}
}
