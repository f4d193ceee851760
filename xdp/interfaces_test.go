//go:build linux

package xdp

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/internal/osnet"
	"github.com/gorxe/gorxe/xdp/veth"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// newTap creates a tap device with address 10.77.0.1/24 in a new namespace. The returned descriptor
// is the other side of the tap, where a virtual machine would be. flags are added to those of
// TUNSETIFF.
func newTap(t *testing.T, mtu int, flags uint16) (ns *os.File, wire int) {
	t.Helper()
	needRoot(t)
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		t.Skip("skipped: no /dev/net/tun")
	}
	ns, err := osnet.NewNS()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	err = osnet.In(int(ns.Fd()), func() error {
		if wire, err = unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK,
			0); err != nil {
			return err
		}
		req, err := unix.NewIfreq("tap0")
		if err != nil {
			return err
		}
		req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | flags)
		if err := unix.IoctlIfreq(wire, unix.TUNSETIFF, req); err != nil {
			return err
		}
		l, err := netlink.LinkByName("tap0")
		if err != nil {
			return err
		}
		if err := netlink.LinkSetMTU(l, mtu); err != nil {
			return err
		}
		a := &netlink.Addr{IPNet: &net.IPNet{IP: hostA4.AsSlice(), Mask: net.CIDRMask(24, 32)}}
		if err := netlink.AddrAdd(l, a); err != nil {
			return err
		}
		return netlink.LinkSetUp(l)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(wire) })
	return ns, wire
}

// readWire reads frames until it finds a RoCE frame, because the kernel also sends on the wire.
func readWire(t *testing.T, wire int) []byte {
	t.Helper()
	b := make([]byte, 1<<16)
	deadline := time.Now().Add(2 * time.Second)
	for time.Now().Before(deadline) {
		n, err := unix.Read(wire, b)
		if err == unix.EAGAIN {
			fds := []unix.PollFd{{Fd: int32(wire), Events: unix.POLLIN}}
			unix.Poll(fds, 100)
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if n > 38 && b[36] == 4791>>8 && b[37] == 4791&0xff {
			return b[:n]
		}
	}
	t.Fatal("no frame on the wire for 2 s")
	return nil
}

// On a tap device, Auto selects native mode.
func TestTap(t *testing.T) {
	ns, wire := newTap(t, 1500, 0)
	p, err := Open("tap0", Options{NetNS: int(ns.Fd())})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if d := p.Info().Datapath; d != "afxdp-native" {
		t.Errorf("Datapath = %q", d)
	}
	for n := range 50 {
		f := packet{}.build(pattern(n*29, n))
		send(t, p, f)
		if got := readWire(t, wire); !bytes.Equal(got, f) {
			t.Fatalf("sent %d bytes, found %d on the wire, first difference at %d", len(f),
				len(got), differ(got, f))
		}
		f = packet{dst: p.Info().MAC, to: hostA4}.build(pattern(n, n+1))
		if _, err := unix.Write(wire, f); err != nil {
			t.Fatal(err)
		}
		if got := receive(t, p, 1, 2*time.Second); len(got) != 1 || !bytes.Equal(got[0], f) {
			t.Fatalf("frame of %d bytes did not arrive complete: received %d frames", len(f),
				len(got))
		}
	}
}

// Frames of more than one chunk work on a tap in the mode that Auto selects.
func TestTapLongFrames(t *testing.T) {
	ns, wire := newTap(t, 4200, 0)
	p, err := Open("tap0", Options{NetNS: int(ns.Fd())})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	t.Logf("datapath %s", p.Info().Datapath)
	for _, n := range []int{64, 3000, 3700, p.Info().MTU - 28} {
		f := packet{}.build(pattern(n, n))
		send(t, p, f)
		if got := readWire(t, wire); !bytes.Equal(got, f) {
			t.Fatalf("sent %d bytes, found %d on the wire", len(f), len(got))
		}
		f = packet{dst: p.Info().MAC, to: hostA4}.build(pattern(n, n+1))
		if _, err := unix.Write(wire, f); err != nil {
			t.Fatal(err)
		}
		if got := receive(t, p, 1, 2*time.Second); len(got) != 1 || !bytes.Equal(got[0], f) {
			t.Errorf("frame of %d bytes did not arrive complete: received %d frames, stats %+v",
				len(f), len(got), p.Stats())
		}
	}
}

// If the other side of the tap is not read, the sender does not block or lose buffers.
func TestUnreadTap(t *testing.T) {
	ns, wire := newTap(t, 1500, 0)
	p, err := Open("tap0", Options{NetNS: int(ns.Fd())})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	var bufs [32]driver.Buf
	f := packet{}.build(pattern(1000, 1))
	start := time.Now()
	for range 300 {
		n := p.Alloc(bufs[:])
		for i := range n {
			bufs[i].B = bufs[i].B[:copy(bufs[i].B, f)]
		}
		if _, err := p.Send(bufs[:n]); err != nil {
			t.Fatal(err)
		}
	}
	if d := time.Since(start); d > 2*time.Second {
		t.Errorf("sending to a stuck wire took %v", d)
	}
	if s := p.Stats(); s.TxDropped == 0 {
		t.Errorf("the tap's queue holds a thousand frames, but none was dropped: %+v", s)
	}
	b := make([]byte, 1<<16)
	for n := 0; n < 2000; n++ {
		if _, err := unix.Read(wire, b); err != nil {
			break
		}
	}
	send(t, p, f)
	if got := readWire(t, wire); !bytes.Equal(got, f) {
		t.Error("the frame after the jam differs")
	}
}

// On bridges, macvlans and VLANs the port uses generic mode. On a VLAN device the kernel adds and
// removes the tag.
func TestStackedInterfaces(t *testing.T) {
	for _, kind := range []struct {
		name string
		make func(attrs netlink.LinkAttrs, parent netlink.Link) error
	}{
		{"bridge", func(attrs netlink.LinkAttrs, parent netlink.Link) error {
			return errors.Join(netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}),
				netlink.LinkSetMasterByIndex(parent, linkIndex(attrs.Name)))
		}},
		{"macvlan", func(attrs netlink.LinkAttrs, parent netlink.Link) error {
			attrs.ParentIndex = parent.Attrs().Index
			return netlink.LinkAdd(&netlink.Macvlan{LinkAttrs: attrs,
				Mode: netlink.MACVLAN_MODE_BRIDGE})
		}},
		{"vlan", func(attrs netlink.LinkAttrs, parent netlink.Link) error {
			attrs.ParentIndex = parent.Attrs().Index
			return netlink.LinkAdd(&netlink.Vlan{LinkAttrs: attrs, VlanId: 7,
				VlanProtocol: netlink.VLAN_PROTOCOL_8021Q})
		}},
	} {
		pair := newPair(t, veth.Options{})
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "stack0"
		var err error
		for i, e := range []*veth.End{&pair.A, &pair.B} {
			onLink(t, e, func(l netlink.Link) error {
				// Each interface answers ARP only for its own addresses.
				if err = os.WriteFile("/proc/sys/net/ipv4/conf/all/arp_ignore", []byte("1"),
					0); err != nil {
					return err
				}
				if err = kind.make(attrs, l); err != nil {
					return nil
				}
				return bringUp(attrs.Name, net.IPv4(10, 78, 0, byte(i+1)))
			})
		}
		if errors.Is(err, unix.EOPNOTSUPP) {
			t.Logf("skipping %s: not supported by the kernel", kind.name)
			continue
		}
		if err != nil {
			t.Fatalf("%s: %v", kind.name, err)
		}
		t.Run(kind.name, func(t *testing.T) { tryStacked(t, pair, attrs.Name) })
	}
}

func linkIndex(name string) int {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return 0
	}
	return l.Attrs().Index
}

func bringUp(name string, ip net.IP) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	if err := netlink.AddrAdd(l,
		&netlink.Addr{IPNet: &net.IPNet{IP: ip, Mask: net.CIDRMask(24, 32)}}); err != nil {
		return err
	}
	return netlink.LinkSetUp(l)
}

func tryStacked(t *testing.T, pair *veth.Pair, name string) {
	open := func(e *veth.End) *Port {
		p, err := Open(name, Options{NetNS: e.Fd()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.Close() })
		return p
	}
	a, b := open(&pair.A), open(&pair.B)
	if d := a.Info().Datapath; d != "afxdp-generic" {
		t.Errorf("Datapath = %q", d)
	}
	hop, err := a.Resolve(context.Background(), netip.Addr{}, addr("10.78.0.2"))
	if err != nil || hop.MAC != b.Info().MAC || hop.VLAN != 0 || hop.Src != addr("10.78.0.1") {
		t.Fatalf("Resolve() = %+v, %v", hop, err)
	}
	to := packet{dst: hop.MAC, to: addr("10.78.0.2")}
	exchange(t, a, b, to.build(pattern(100, 1)), to.build(pattern(1400, 2)))
	sendUDP(t, &pair.A, "10.78.0.2:4791", []byte("by the kernel"))
	if got := receive(t, b, 1, 2*time.Second); len(got) != 1 ||
		!bytes.HasSuffix(got[0], []byte("by the kernel")) {
		t.Errorf("frames from the kernel: %q", got)
	}
}
