package service_test

import (
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/internal/endpoint"
	"github.com/gorxe/gorxe/internal/service"
	"github.com/gorxe/gorxe/internal/udpmsg"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/udp"
	"github.com/gorxe/gorxe/xdp/veth"
)

// newPair returns a service at one end of a veth pair, and the pair. The programs of the tests are
// in another network namespace than the service.
func newPair(t *testing.T) (*host, *veth.Pair) {
	t.Helper()
	pair, err := veth.New(veth.Options{Offloads: true})
	if errors.Is(err, veth.ErrPermission) {
		t.Skip(err)
	}
	must(t, err)
	t.Cleanup(func() { must(t, pair.Close()) })
	p, err := udp.Open(pair.A.Iface, udp.Options{NetNS: pair.A.Fd(), Shared: true})
	must(t, err)
	return newHostOn(t, p), pair
}

// families returns a GID of each kind: link-local IPv6, IPv4, other IPv6.
func families(t *testing.T, n driver.Network) (list [3]netip.Addr) {
	t.Helper()
	for _, p := range n.Addrs() {
		a, k := p.Addr(), 2
		switch {
		case a.IsLinkLocalUnicast():
			k = 0
		case a.Is4():
			k = 1
		}
		list[k] = a
	}
	if slices.Contains(list[:], netip.Addr{}) {
		t.Fatalf("addresses %v", n.Addrs())
	}
	return list
}

func TestAddressFamilies(t *testing.T) {
	h, pair := newPair(t)
	p, err := udp.Open(pair.B.Iface, udp.Options{NetNS: pair.B.Fd()})
	must(t, err)
	dev, err := roce.New(p)
	must(t, err)
	defer func() { must(t, dev.Close()) }()
	for i, name := range []string{"link-local", "IPv4", "IPv6"} {
		t.Run(name, func(t *testing.T) {
			a := newProgram(t, h.Path())
			remote, err := endpoint.New(dev, endpoint.Config{Memory: memory})
			must(t, err)
			defer remote.Close()
			// From the member to the peer.
			at := netip.AddrPortFrom(families(t, p)[i], 7471)
			l, err := dev.Listen(at, roce.ListenOptions{})
			must(t, err)
			defer l.Close()
			exchange(t, a, l, remote)
			// Between members.
			b, c := newProgram(t, h.Path()), newProgram(t, h.Path())
			at = netip.AddrPortFrom(families(t, c.port)[i], 7472)
			m, err := c.dev.Listen(at, roce.ListenOptions{})
			must(t, err)
			defer m.Close()
			exchange(t, b, m, c.Endpoint)
		})
	}
}

func TestOtherNamespace(t *testing.T) {
	h, pair := newPair(t)
	_, err := service.Join(h.Path(), service.JoinOptions{SameNet: true})
	if want := service.ErrOtherNet; !errors.Is(err, want) {
		t.Errorf("Join() = %v, want %v", err, want)
	}
	p, err := service.Join(h.Path(), service.JoinOptions{SameNet: true, NetNS: pair.A.Fd()})
	must(t, err)
	must(t, p.Close())
	p, err = service.Join(h.Path(), service.JoinOptions{Addr: pair.A.IPv4.Addr()})
	must(t, err)
	if got := p.Addrs(); len(got) != 1 || got[0].Addr() != pair.A.IPv4.Addr() {
		t.Errorf("Addrs() = %v, want only %v", got, pair.A.IPv4)
	}
	must(t, p.Close())
	_, err = service.Join(h.Path(), service.JoinOptions{Addr: pair.B.IPv4.Addr()})
	if want := driver.ErrNoAddress; !errors.Is(err, want) {
		t.Errorf("Join() = %v, want %v", err, want)
	}
}

func TestAddressChanges(t *testing.T) {
	h, pair := newPair(t)
	a := newProgram(t, h.Path())
	extra := netip.MustParsePrefix("10.99.1.1/24")
	change := func(f func(l netlink.Link, a *netlink.Addr) error) {
		t.Helper()
		must(t, pair.A.Do(func() error {
			l, err := netlink.LinkByName(pair.A.Iface)
			if err != nil {
				return err
			}
			x, err := netlink.ParseAddr(extra.String())
			if err != nil {
				return err
			}
			return f(l, x)
		}))
	}
	has := func() bool {
		return slices.ContainsFunc(a.dev.GIDs(),
			func(g roce.GIDEntry) bool { return g.GID == roce.GIDFromAddr(extra.Addr()) })
	}
	for range 3 {
		change(func(l netlink.Link, x *netlink.Addr) error { return netlink.AddrAdd(l, x) })
		eventually(t, "the member has the address", has)
		b := newProgram(t, h.Path())
		at := netip.AddrPortFrom(extra.Addr(), 7471)
		l, err := a.dev.Listen(at, roce.ListenOptions{})
		must(t, err)
		e, err := endpoint.New(a.dev, endpoint.Config{Memory: memory})
		must(t, err)
		exchange(t, b, l, e)
		must(t, l.Close())
		must(t, e.Close())
		must(t, b.dev.Close())
		change(func(l netlink.Link, x *netlink.Addr) error { return netlink.AddrDel(l, x) })
		eventually(t, "the member does not have the address", func() bool { return !has() })
	}
}

// ethtool changes a setting of an interface in the network namespace of the calling thread.
func ethtool(iface string, command, value uint32) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	arg := struct{ command, value uint32 }{command, value}
	req := struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}{data: unsafe.Pointer(&arg)}
	copy(req.name[:], iface)
	_, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL,
		uintptr(unsafe.Pointer(&req)))
	if e != 0 {
		return e
	}
	return nil
}

// When the kernel merges packets of several members, the service ends that, so that no more are
// lost.
func TestMergedPackets(t *testing.T) {
	const sgro, stxcsum = 0x2c, 0x17 // ETHTOOL_SGRO, ETHTOOL_STXCSUM
	h, pair := newPair(t)
	must(t, pair.A.Do(func() error { return ethtool(pair.A.Iface, sgro, 1) }))
	// The sender's kernel cuts the run, and the packets arrive together.
	must(t, pair.B.Do(func() error { return ethtool(pair.B.Iface, stxcsum, 0) }))
	var fd int
	must(t, pair.B.Do(func() error {
		l, err := udpmsg.Listen(pair.B.IPv4.Addr(), pair.B.Index, false)
		fd = l.FD
		return err
	}))
	defer unix.Close(fd)
	var ports [2]*service.MemberPort
	for i := range ports {
		p, err := service.Join(h.Path(), service.JoinOptions{})
		must(t, err)
		defer p.Close()
		ports[i] = p
	}
	const size, packets = 200, 16
	run := make([]byte, size*packets)
	for k := range packets {
		run[k*size+5] = ports[k%2].Slot()
	}
	oob := make([]byte, unix.CmsgSpace(2))
	c := (*unix.Cmsghdr)(unsafe.Pointer(&oob[0]))
	c.Level, c.Type = unix.SOL_UDP, unix.UDP_SEGMENT
	c.SetLen(unix.CmsgLen(2))
	binary.NativeEndian.PutUint16(oob[unix.CmsgLen(0):], size)
	to := &unix.SockaddrInet4{Port: bth.Port, Addr: pair.A.IPv4.Addr().As4()}
	eventually(t, "all packets of a run arrive", func() bool {
		for _, p := range ports {
			drain(p)
		}
		must(t, unix.Sendmsg(fd, run, oob, to, 0))
		n := 0
		for i := 0; i < 20 && n < packets; i++ {
			_ = ports[i%2].Wait(5 * time.Millisecond)
			n += drain(ports[i%2])
		}
		return n == packets
	})
}

// The kernel does not merge packets of programs of different users, because a program could read
// those of others.
func TestUsersAreNotMerged(t *testing.T) {
	h, _ := newPair(t)
	for i, want := range []bool{true, true, false} {
		if i == 2 {
			h.ChangeUsers()
		}
		p, err := service.Join(h.Path(), service.JoinOptions{})
		must(t, err)
		defer p.Close()
		if got := h.Merging(); got != want {
			t.Errorf("packets are merged with %d programs: %v, want %v", i+1, got, want)
		}
	}
}

// drain receives all packets of a port and returns their number.
func drain(p driver.Port) (n int) {
	var bufs [64]driver.Buf
	for {
		k := p.Receive(bufs[:])
		p.Release(bufs[:k])
		if n += k; k == 0 {
			return n
		}
	}
}

// eventually waits until f returns true.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("this does not happen: %s", what)
		}
	}
}

// datagrams is a UD queue pair with a receive and memory.
func datagrams(t *testing.T, dev *roce.Device) *endpoint.Endpoint {
	t.Helper()
	e, err := endpoint.New(dev, endpoint.Config{QP: roce.QPConfig{Type: roce.UD}, Memory: memory})
	must(t, err)
	t.Cleanup(func() { _ = e.Close() })
	must(t, e.QP.Activate(roce.QKeyUDP))
	return e
}

// expectDatagram waits for the completion of a receive with a length.
func expectDatagram(t *testing.T, e *endpoint.Endpoint, length uint32) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		var wc [1]roce.WC
		if _, err := e.CQ.Wait(ctx, wc[:]); err != nil {
			t.Fatal(err)
		}
		if wc[0].Opcode != roce.WCRecv {
			continue
		}
		if wc[0].ByteLen != roce.GRHLen+length {
			t.Errorf("received %d bytes, want %d", wc[0].ByteLen, roce.GRHLen+length)
		}
		return
	}
}

func TestMulticast(t *testing.T) {
	h, pair := newPair(t)
	p, err := udp.Open(pair.B.Iface, udp.Options{NetNS: pair.B.Fd()})
	must(t, err)
	dev, err := roce.New(p)
	must(t, err)
	t.Cleanup(func() { must(t, dev.Close()) })
	a, b := newProgram(t, h.Path()), newProgram(t, h.Path())
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for _, group := range []string{"239.1.1.1", "ff0e::77"} {
		to := netip.MustParseAddr(group)
		receivers := []*endpoint.Endpoint{datagrams(t, a.dev), datagrams(t, b.dev),
			datagrams(t, h.dev)}
		for _, e := range receivers {
			must(t, e.QP.AttachMulticast(to))
		}
		for i, from := range []*endpoint.Endpoint{datagrams(t, dev), datagrams(t, a.dev)} {
			for _, e := range receivers {
				must(t, e.QP.PostRecv(roce.RecvWR{SGEs: []roce.SGE{e.MR.SGE(0, 1000)}}))
			}
			ah, err := from.Dev.CreateAH(ctx, roce.AHAttr{Remote: roce.GIDFromAddr(to)})
			must(t, err)
			length := uint32(10 + i)
			must(t, from.QP.PostSend(roce.SendWR{Op: roce.OpSend,
				SGEs: []roce.SGE{from.MR.SGE(0, int(length))}, AH: ah,
				RemoteQPN: roce.QPNMulticast, RemoteQKey: roce.QKeyUDP}))
			for _, e := range receivers {
				expectDatagram(t, e, length)
			}
			must(t, ah.Close())
		}
	}
}
