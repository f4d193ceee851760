package lab

import (
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The names inside the lab's two namespaces.
const (
	bridgeName = "br0"
	hostIface  = "gx0"
	hostPort   = "to-gx0" // the bridge's side of the cable
	hostID     = 100      // last byte of gorxe's addresses
)

func setUp(name string) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("lab: find %s: %w", name, err)
	}
	if err := netlink.LinkSetUp(l); err != nil {
		return fmt.Errorf("lab: set %s up: %w", name, err)
	}
	return nil
}

// addresses returns the addresses of a host of the lab.
func addresses(id byte) (v4, v6 netip.Prefix) {
	a6 := [16]byte{0: 0xfd, 1: 0x77, 15: id}
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 77, 0, id}), 24),
		netip.PrefixFrom(netip.AddrFrom16(a6), 64)
}

func mac(id byte) net.HardwareAddr { return net.HardwareAddr{0x02, 0x77, 0, 0, 0, id} }

// makeBridge runs in the switch's namespace. The bridge forwards at once, multicast to all ports,
// and has no addresses.
func makeBridge(mtu int) error {
	sysctl("ipv6/conf/default/disable_ipv6", "1")
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = bridgeName, mtu
	snoop := false
	if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs,
		MulticastSnooping: &snoop}); err != nil {
		return fmt.Errorf("lab: create a bridge: %w", err)
	}
	return setUp(bridgeName)
}

// plug joins an interface to the bridge.
func plug(name string, mtu int) error {
	br, err := netlink.LinkByName(bridgeName)
	if err != nil {
		return err
	}
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	if err := netlink.LinkSetMTU(l, mtu); err != nil {
		return fmt.Errorf("lab: MTU %d for %s: %w", mtu, name, err)
	}
	if err := netlink.LinkSetMaster(l, br.(*netlink.Bridge)); err != nil {
		return fmt.Errorf("lab: join %s to the bridge: %w", name, err)
	}
	return setUp(name)
}

// makeTap creates a tap device in the switch's namespace that lives as long as its descriptor.
func makeTap(name string, mtu int) (*os.File, error) {
	tap := &netlink.Tuntap{
		LinkAttrs: netlink.LinkAttrs{Name: name}, Mode: netlink.TUNTAP_MODE_TAP, NonPersist: true,
		Queues: 1,
		Flags:  netlink.TUNTAP_NO_PI | netlink.TUNTAP_VNET_HDR | netlink.TUNTAP_ONE_QUEUE,
	}
	if err := netlink.LinkAdd(tap); err != nil {
		return nil, fmt.Errorf("lab: create a tap device (check that /dev/net/tun exists): %w", err)
	}
	if len(tap.Fds) != 1 {
		return nil, fmt.Errorf("lab: a tap device with %d descriptors", len(tap.Fds))
	}
	if err := plug(name, mtu); err != nil {
		tap.Fds[0].Close()
		return nil, err
	}
	return tap.Fds[0], nil
}

// makeCable connects gorxe's namespace to the bridge. It runs in the switch's namespace.
func makeCable(host *NS, mtu int) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = hostPort, mtu
	v := &netlink.Veth{
		LinkAttrs: attrs, PeerName: hostIface, PeerHardwareAddr: mac(hostID), PeerMTU: uint32(mtu),
		PeerNamespace: netlink.NsFd(host.Fd()),
	}
	if err := netlink.LinkAdd(v); err != nil {
		return fmt.Errorf("lab: create a veth pair: %w", err)
	}
	return plug(hostPort, mtu)
}

// configureHost runs in gorxe's namespace.
func configureHost() error {
	if err := checksumOffloadOff(hostIface); err != nil {
		return err
	}
	l, err := netlink.LinkByName(hostIface)
	if err != nil {
		return err
	}
	v4, v6 := addresses(hostID)
	for _, p := range []netip.Prefix{v4, v6} {
		a := &netlink.Addr{IPNet: &net.IPNet{IP: p.Addr().AsSlice(),
			Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}, Flags: unix.IFA_F_NODAD}
		if err := netlink.AddrAdd(l, a); err != nil {
			return fmt.Errorf("lab: address %v: %w", p, err)
		}
	}
	return setUp(hostIface)
}

// setLink sets an interface in the calling thread's namespace up or down.
func setLink(name string, up bool) error {
	if up {
		return setUp(name)
	}
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return netlink.LinkSetDown(l)
}
