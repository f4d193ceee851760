//go:build linux

package xdp

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/gorxe/gorxe/xdp/veth"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// through is a host between two others: near is the pair of A and the host (B), and far is the
// second interface of the host and a host behind it.
type through struct {
	near, far *veth.Pair
}

const farIface = "far0" // the second interface of the host in the middle

// newThrough builds the three hosts. The interfaces towards the host behind have no addresses.
func newThrough(t *testing.T) through {
	t.Helper()
	h := through{newPair(t, veth.Options{}), newPair(t, veth.Options{})}
	onLink(t, &h.far.A, func(l netlink.Link) error {
		return errors.Join(netlink.LinkSetDown(l), netlink.LinkSetName(l, farIface),
			netlink.LinkSetHardwareAddr(l, net.HardwareAddr{0x02, 0x78, 0, 0, 0, 1}),
			netlink.LinkSetNsFd(l, h.near.B.Fd()))
	})
	flush(t, &h.far.B)
	onLink(t, &h.far.B, func(l netlink.Link) error {
		return netlink.LinkSetHardwareAddr(l, net.HardwareAddr{0x02, 0x78, 0, 0, 0, 2})
	})
	inNS(t, &h.near.B, func() error {
		l, err := netlink.LinkByName(farIface)
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(l)
	})
	return h
}

func inNS(t *testing.T, e *veth.End, f func() error) {
	t.Helper()
	if err := e.Do(f); err != nil {
		t.Fatal(err)
	}
}

func addAddr(t *testing.T, e *veth.End, iface string, prefix netip.Prefix) {
	t.Helper()
	inNS(t, e, func() error {
		l, err := netlink.LinkByName(iface)
		if err != nil {
			return err
		}
		return netlink.AddrAdd(l, netlinkAddr(prefix))
	})
}

func netlinkAddr(p netip.Prefix) *netlink.Addr {
	a := &netlink.Addr{IPNet: &net.IPNet{IP: p.Addr().AsSlice(),
		Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}}
	if p.Addr().Is6() {
		a.Flags = unix.IFA_F_NODAD
	}
	return a
}

// wantDelivered sends UDP datagrams from a kernel socket on one host to port 4791 until a kernel
// socket on another host receives one.
func wantDelivered(t *testing.T, from, to *veth.End, at string) {
	t.Helper()
	var c net.PacketConn
	inNS(t, to, func() (err error) {
		c, err = net.ListenPacket("udp", at)
		return err
	})
	defer c.Close()
	for range 20 { // the first datagrams may be lost during ARP and while a bridge port comes up
		sendUDP(t, from, at, []byte("forwarded"))
		c.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
		var b [100]byte
		if n, _, err := c.ReadFrom(b[:]); err == nil {
			if string(b[:n]) != "forwarded" {
				t.Errorf("%s received %q", at, b[:n])
			}
			return
		}
	}
	t.Errorf("UDP to %s did not arrive", at)
}

// The host with the Port is a router. It forwards UDP packets to port 4791 between its neighbors,
// and the Port receives those to the host itself.
func TestRouterForwards(t *testing.T) {
	for _, mode := range modesToTest {
		t.Run(mode.String(), func(t *testing.T) {
			h := newThrough(t)
			addAddr(t, &h.near.B, farIface, netip.MustParsePrefix("10.78.0.1/24"))
			addAddr(t, &h.near.B, farIface, netip.MustParsePrefix("fd78::1/64"))
			addAddr(t, &h.far.B, h.far.B.Iface, netip.MustParsePrefix("10.78.0.2/24"))
			addAddr(t, &h.far.B, h.far.B.Iface, netip.MustParsePrefix("fd78::2/64"))
			addRoute(t, &h.near.A, "10.78.0.0/24", "10.77.0.2", 0)
			addRoute(t, &h.near.A, "fd78::/64", "fd77::2", 0)
			inNS(t, &h.near.B, func() error {
				return errors.Join(
					os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0),
					os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0))
			})
			b := openEnd(t, &h.near.B, Options{Mode: mode})
			wantDelivered(t, &h.near.A, &h.far.B, "10.78.0.2:4791")
			wantDelivered(t, &h.near.A, &h.far.B, "[fd78::2]:4791")
			if got := receive(t, b, 1, 0); len(got) != 0 {
				t.Errorf("the port received a forwarded packet: %x", got[0])
			}
			for _, own := range []string{"10.77.0.2:4791", "[fd77::2]:4791"} {
				sendUDP(t, &h.near.A, own, []byte("own"))
				if got := receive(t, b, 1, 2*time.Second); len(got) != 1 {
					t.Errorf("the port did not receive a packet to %s", own)
				}
			}
		})
	}
}

// The interface of the Port is a member of a bridge, which forwards UDP packets to port 4791.
func TestBridgeForwards(t *testing.T) {
	h := newThrough(t)
	addAddr(t, &h.far.B, h.far.B.Iface, netip.MustParsePrefix("10.77.0.3/24"))
	b := openEnd(t, &h.near.B, Options{})
	inNS(t, &h.near.B, func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "br0"
		if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
			return err
		}
		br := linkIndex("br0")
		for _, name := range []string{h.near.B.Iface, farIface, "br0"} {
			l, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			if name != "br0" {
				err = netlink.LinkSetMasterByIndex(l, br)
			}
			if err = errors.Join(err, netlink.LinkSetUp(l)); err != nil {
				return err
			}
		}
		return nil
	})
	wantDelivered(t, &h.near.A, &h.far.B, "10.77.0.3:4791")
	if got := receive(t, b, 1, 0); len(got) != 0 {
		t.Errorf("the port received a bridged packet: %x", got[0])
	}
}

// The host has a macvlan or VLAN device on the interface of the Port. UDP packets to port 4791 of
// that device reach its own socket.
func TestChildDevices(t *testing.T) {
	for name, child := range map[string]func(netlink.LinkAttrs) netlink.Link{
		"macvlan": func(a netlink.LinkAttrs) netlink.Link {
			return &netlink.Macvlan{LinkAttrs: a, Mode: netlink.MACVLAN_MODE_BRIDGE}
		},
		"vlan": func(a netlink.LinkAttrs) netlink.Link {
			return &netlink.Vlan{LinkAttrs: a, VlanId: 7, VlanProtocol: netlink.VLAN_PROTOCOL_8021Q}
		},
	} {
		t.Run(name, func(t *testing.T) {
			pair := newPair(t, veth.Options{})
			b := openEnd(t, &pair.B, Options{})
			for i, e := range []*veth.End{&pair.A, &pair.B} {
				err := e.Do(func() error {
					// Each interface answers ARP only for its own addresses.
					if err := os.WriteFile("/proc/sys/net/ipv4/conf/all/arp_ignore", []byte("1"),
						0); err != nil {
						return err
					}
					attrs := netlink.NewLinkAttrs()
					attrs.Name, attrs.ParentIndex = "child0", e.Index
					if err := netlink.LinkAdd(child(attrs)); err != nil {
						return err
					}
					return bringUp(attrs.Name, net.IPv4(10, 78, 0, byte(i+1)))
				})
				if errors.Is(err, unix.EOPNOTSUPP) {
					t.Skipf("skipped: the kernel does not support %s devices", name)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			wantDelivered(t, &pair.A, &pair.B, "10.78.0.2:4791")
			if got := receive(t, b, 1, 0); len(got) != 0 {
				t.Errorf("the port received a packet of the child device: %x", got[0])
			}
		})
	}
}

// The Port receives packets to an address from the time when it is added until it is removed, and
// follows a change of its MAC.
func TestSteeringFollowsAddresses(t *testing.T) {
	pair := newPair(t, veth.Options{})
	a, b := openEnd(t, &pair.A, Options{}), openEnd(t, &pair.B, Options{})
	arrives := func(k packet, want bool) {
		t.Helper()
		send(t, a, k.build([]byte("x")))
		// A packet that is certainly taken shows that the first one was handled.
		send(t, a, packet{dst: b.Info().MAC}.build([]byte("end")))
		n := 1
		if want {
			n = 2
		}
		if got := receive(t, b, n, 2*time.Second); len(got) != n {
			t.Errorf("%+v: the port received %d packets, want %d", k, len(got), n)
		}
	}
	for _, p := range []string{"10.77.0.99/24", "fd77::99/64"} {
		prefix := netip.MustParsePrefix(p)
		late := packet{v6: prefix.Addr().Is6(), to: prefix.Addr()}
		for range 2 {
			arrives(late, false)
			onLink(t, &pair.B, func(l netlink.Link) error {
				return netlink.AddrAdd(l, netlinkAddr(prefix))
			})
			await(t, b, "new address", func() bool { return has(b.Addrs(), prefix.Addr()) })
			arrives(late, true)
			onLink(t, &pair.B, func(l netlink.Link) error {
				return netlink.AddrDel(l, netlinkAddr(prefix))
			})
			await(t, b, "removed address", func() bool { return !has(b.Addrs(), prefix.Addr()) })
		}
		arrives(late, false)
	}
	// More addresses than fit in the map of first addresses.
	onLink(t, &pair.B, func(l netlink.Link) error {
		for i := range byte(2 * first4) {
			four := netip.AddrFrom4([4]byte{10, 77, 1, i + 1})
			six := netip.AddrFrom16([16]byte{0: 0xfd, 1: 0x77, 14: 1, 15: i + 1})
			if err := errors.Join(netlink.AddrAdd(l, netlinkAddr(netip.PrefixFrom(four, 24))),
				netlink.AddrAdd(l, netlinkAddr(netip.PrefixFrom(six, 64)))); err != nil {
				return err
			}
		}
		return nil
	})
	await(t, b, "many addresses", func() bool { return len(b.Addrs()) == 3+4*first4 })
	for _, p := range b.Addrs() {
		arrives(packet{v6: p.Addr().Is6(), to: p.Addr()}, true)
	}
	group := addr("239.1.2.3")
	late := packet{to: group, dst: multicastMAC(group)}
	arrives(late, false)
	if err := b.JoinGroup(group); err != nil {
		t.Fatal(err)
	}
	arrives(late, true)
	if err := b.LeaveGroup(group); err != nil {
		t.Fatal(err)
	}
	arrives(late, false)

	moved := net.HardwareAddr{0x02, 0x77, 0, 0, 0, 0x42}
	onLink(t, &pair.B, func(l netlink.Link) error { return netlink.LinkSetHardwareAddr(l, moved) })
	await(t, b, "new MAC", func() bool { return b.Info().MAC == [6]byte(moved) })
	arrives(packet{dst: macB}, false)
	arrives(packet{v6: true, dst: [6]byte(moved)}, true)
}

// A Port has at most maxAddrs addresses of each IP version, and says so.
func TestManyAddresses(t *testing.T) {
	needRoot(t)
	o, err := newOwnAddrs()
	if err != nil {
		t.Fatal(err)
	}
	defer o.close()
	var list []netip.Prefix
	for a := addr("10.0.0.1"); len(list) <= maxAddrs; a = a.Next() {
		list = append(list, netip.PrefixFrom(a, 8))
	}
	six := netip.MustParsePrefix("fd77::2/64")
	set, err := o.setHosts(append(list, six), macB)
	if err == nil || len(set) != maxAddrs+1 || set[maxAddrs] != six {
		t.Errorf("setHosts of %d addresses: %d, %v", len(list)+1, len(set), err)
	}
	if set, err = o.setHosts(list[:2], macB); err != nil || len(set) != 2 {
		t.Errorf("setHosts of 2 addresses: %d, %v", len(set), err)
	}
	n := 0
	var key [ipv4KeyLen]byte
	var value [ownLen]byte
	for it := o.v4.Iterate(); it.Next(&key, &value); n++ {
	}
	if n != 2 {
		t.Errorf("%d entries are left in the map, want 2", n)
	}
}
