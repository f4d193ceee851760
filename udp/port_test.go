package udp_test

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/udp"
	"github.com/gorxe/gorxe/xdp/veth"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// pair opens two ports: on loopback addresses, or on a veth pair.
func pair(t *testing.T, veth bool) *testbed.Ports {
	t.Helper()
	return open(t, testbed.Config{UDP: true, Veth: veth, MTU: 4200})
}

func open(t *testing.T, c testbed.Config) *testbed.Ports {
	t.Helper()
	p, err := testbed.OpenPorts(c)
	if testbed.Unavailable(err) {
		t.Skipf("no veth pair here (needs root): %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, port := range p.Port {
			if err := port.Close(); err != nil {
				t.Errorf("Close() = %v", err)
			}
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// packet writes a SEND with n bytes of payload into b.
func packet(e *frame.Encoder, b []byte, a *frame.Address, psn bth.PSN, n int) []byte {
	at := frame.PutHeaders(b, a)
	p := b[at:]
	bth.PutBTH(p, &bth.BTHFields{Opcode: bth.RCSendOnly, PKey: bth.DefaultPKey, DestQP: 7,
		PSN: psn})
	for i := range n {
		p[bth.HeaderLen+i] = byte(i)
	}
	b = b[:at+bth.HeaderLen+n+bth.ICRCLen]
	e.Finish(b, at)
	return b
}

// send sends a packet.
func send(t *testing.T, p driver.Port, a *frame.Address, n int) {
	t.Helper()
	e := &frame.Encoder{SourcePort: p.Info().SourcePort}
	var bufs [1]driver.Buf
	if p.Alloc(bufs[:]) != 1 {
		t.Fatal("no buffer")
	}
	bufs[0].B = packet(e, bufs[0].B, a, 0, n)
	if sent, err := p.Send(bufs[:]); sent != 1 || err != nil {
		t.Fatalf("Send() = %d, %v; %s", sent, err, p.Info().Note)
	}
}

// receive waits for a packet, decodes it and calls f.
func receive(t *testing.T, p driver.Port, f func(pkt *bth.Packet)) {
	t.Helper()
	var bufs [1]driver.Buf
	for deadline := time.Now().Add(10 * time.Second); p.Receive(bufs[:]) == 0; {
		if time.Now().After(deadline) {
			t.Fatal("no packet arrives")
		}
		if err := p.Wait(time.Second); err != nil {
			t.Fatal(err)
		}
	}
	d, pkt := new(frame.Decoder), new(bth.Packet)
	if r := d.Decode(bufs[0].B, pkt); r != frame.ReasonOK {
		t.Fatalf("Decode() = %v", r)
	}
	f(pkt)
	p.Release(bufs[:])
}

// addrs returns addresses of both ports that satisfy f.
func addrs(t *testing.T, p *testbed.Ports, f func(netip.Addr) bool) (a [2]bth.GID) {
	t.Helper()
	for i, port := range p.Port {
		list := port.(*udp.Port).Addrs()
		k := slices.IndexFunc(list, func(q netip.Prefix) bool { return f(q.Addr()) })
		if k < 0 {
			t.Fatalf("no such address among %v", list)
		}
		a[i] = bth.GIDFromAddr(list[k].Addr())
	}
	return a
}

// Packets arrive unchanged, with their traffic class and hop limit.
func TestPackets(t *testing.T) {
	global := func(a netip.Addr) bool { return a.Is6() && !a.IsLinkLocalUnicast() }
	for _, c := range []struct {
		name string
		veth bool
		addr func(netip.Addr) bool
	}{
		{"loopback", false, netip.Addr.Is4},
		{"IPv4", true, netip.Addr.Is4},
		{"IPv6", true, global},
		{"link-local", true, netip.Addr.IsLinkLocalUnicast},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := pair(t, c.veth)
			a := addrs(t, p, c.addr)
			const count = 45
			for i := range count {
				n := []int{0, 1, 64, 1024, 4096}[i%5]
				path := frame.Address{Src: a[0], Dst: a[1], SrcPort: 0xc001, HopLimit: 64,
					TrafficClass: uint8(i * 5)}
				if i > 5 { // so many that the socket gets the class
					path.TrafficClass = 0x42
				}
				if i == 2 {
					path.HopLimit = 9
				}
				n = n &^ 3
				send(t, p.Port[0], &path, n)
				receive(t, p.Port[1], func(pkt *bth.Packet) {
					if pkt.Src != a[0] || pkt.Dst != a[1] || pkt.SrcPort != bth.Port ||
						pkt.TrafficClass != path.TrafficClass || pkt.HopLimit != path.HopLimit ||
						len(pkt.Payload) != n || !bytes.Equal(pkt.Payload, counting(n)) {
						t.Errorf("received %v to %v, port %d, class %#x, hop limit %d, %d bytes; sent %+v",
							pkt.Src, pkt.Dst, pkt.SrcPort, pkt.TrafficClass, pkt.HopLimit,
							len(pkt.Payload), path)
					}
				})
			}
			if s := p.Port[0].(*udp.Port).Stats(); s.TxFrames != count || s.TxDropped != 0 {
				t.Errorf("Stats() = %+v, want %d sent frames", s, count)
			}
			if s := p.Port[1].(*udp.Port).Stats(); s.RxFrames != count || s.RxDropped != 0 {
				t.Errorf("Stats() = %+v, want %d received frames", s, count)
			}
		})
	}
}

func counting(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i)
	}
	return b
}

func TestAddressInUse(t *testing.T) {
	p := pair(t, false)
	addr := p.Port[0].(*udp.Port).Addrs()[0].Addr()
	if _, err := udp.Open(addr.String(), udp.Options{}); !errors.Is(err, driver.ErrBusy) {
		t.Errorf("Open(%v) again = %v, want %v", addr, err, driver.ErrBusy)
	}
	if err := p.Port[0].Close(); err != nil {
		t.Fatal(err)
	}
	again, err := udp.Open(addr.String(), udp.Options{})
	if err != nil {
		t.Fatalf("Open(%v) after Close = %v", addr, err)
	}
	again.Close()
}

func TestOpenErrors(t *testing.T) {
	for name, want := range map[string]error{
		"gorxe-none":  driver.ErrNoInterface,
		"192.0.2.254": driver.ErrNoAddress,
		"":            driver.ErrNoInterface,
	} {
		if p, err := udp.Open(name, udp.Options{}); !errors.Is(err, want) {
			t.Errorf("Open(%q) = %v, want %v", name, err, want)
			if err == nil {
				p.Close()
			}
		}
	}
	if p, err := udp.Open("lo", udp.Options{Addrs: []netip.Addr{netip.MustParseAddr(
		"192.0.2.254")}}); !errors.Is(err, driver.ErrNoAddress) {
		t.Errorf("Open with a foreign address = %v, want %v", err, driver.ErrNoAddress)
		if err == nil {
			p.Close()
		}
	}
}

// Wake and Close end Wait, before it or during it.
func TestWait(t *testing.T) {
	p := pair(t, false).Port[0]
	p.Wake()
	if err := p.Wait(-1); err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() { done <- p.Wait(-1) }()
	p.Wake()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if err := p.Wait(time.Microsecond); err != nil {
		t.Fatal(err)
	}
	go func() { done <- p.Wait(-1) }()
	p.Close()
	if err := <-done; !errors.Is(err, driver.ErrClosed) {
		t.Errorf("Wait() = %v after Close, want %v", err, driver.ErrClosed)
	}
	if n, err := p.Send(nil); n != 0 || !errors.Is(err, driver.ErrClosed) {
		t.Errorf("Send() = %d, %v after Close", n, err)
	}
	if n := p.Receive(make([]driver.Buf, 1)); n != 0 {
		t.Errorf("Receive() = %d after Close", n)
	}
}

// Frames that cannot be sent are counted, and do not hold up others.
func TestFramesThatAreNotSent(t *testing.T) {
	p := pair(t, false)
	a := addrs(t, p, netip.Addr.Is4)
	path := frame.Address{Src: a[0], Dst: a[1], HopLimit: 64}
	foreign := path
	foreign.Src = bth.GIDFromAddr(netip.MustParseAddr("192.0.2.1"))
	e := &frame.Encoder{SourcePort: bth.Port}
	var bufs [3]driver.Buf
	if p.Port[0].Alloc(bufs[:]) != len(bufs) {
		t.Fatal("no buffers")
	}
	bufs[0].B = packet(e, bufs[0].B, &foreign, 0, 4)
	bufs[1].B = bufs[1].B[:10]
	bufs[2].B = packet(e, bufs[2].B, &path, 0, 8)
	if n, err := p.Port[0].Send(bufs[:]); n != 1 || err != nil {
		t.Errorf("Send() = %d, %v; want 1 frame", n, err)
	}
	receive(t, p.Port[1], func(pkt *bth.Packet) {
		if len(pkt.Payload) != 8 {
			t.Errorf("%d bytes arrive, want 8", len(pkt.Payload))
		}
	})
	if s := p.Port[0].(*udp.Port).Stats(); s.TxFrames != 1 || s.TxDropped != 2 {
		t.Errorf("Stats() = %+v, want 1 sent and 2 dropped", s)
	}
}

// refusal makes the kernel refuse packets from an interface to an address. If set and undo are nil,
// a firewall does.
type refusal struct {
	name      string
	set, undo func(l netlink.Link, to *net.IPNet) error
	want      error
}

var refusals = []refusal{
	{
		"MTU",
		func(l netlink.Link, _ *net.IPNet) error { return netlink.LinkSetMTU(l, 600) },
		func(l netlink.Link, _ *net.IPNet) error { return netlink.LinkSetMTU(l, 4200) },
		unix.EMSGSIZE,
	},
	{
		"route",
		func(_ netlink.Link, to *net.IPNet) error {
			return netlink.RouteAdd(&netlink.Route{Type: unix.RTN_PROHIBIT, Dst: to})
		},
		func(_ netlink.Link, to *net.IPNet) error {
			return netlink.RouteDel(&netlink.Route{Type: unix.RTN_PROHIBIT, Dst: to})
		},
		unix.EACCES,
	},
	{"firewall", nil, nil, unix.EPERM}, // needs Linux 6.4
}

// Packets that the kernel refuses are dropped and counted, Info.Note says why, and later ones
// arrive.
func TestRefusedPackets(t *testing.T) {
	for _, c := range refusals {
		t.Run(c.name, func(t *testing.T) { testRefusal(t, &c) })
	}
}

func testRefusal(t *testing.T, c *refusal) {
	p := open(t, testbed.Config{UDP: true, Veth: true, MTU: 4200, Offloads: true})
	a, from := addrs(t, p, netip.Addr.Is4), p.Port[0].(*udp.Port)
	var pass func() error
	change := func(f func(netlink.Link, *net.IPNet) error) {
		t.Helper()
		if f == nil {
			var err error
			if pass == nil {
				pass, err = p.Pair.A.Refuse()
			} else {
				err = pass()
			}
			if testbed.Unavailable(err) {
				t.Skip(err)
			}
			if err != nil {
				t.Fatal(err)
			}
			return
		}
		if err := p.Pair.A.Do(func() error {
			l, err := netlink.LinkByName(p.Pair.A.Iface)
			if err != nil {
				return err
			}
			return f(l, &net.IPNet{IP: a[1].Addr().AsSlice(), Mask: net.CIDRMask(32, 32)})
		}); err != nil {
			t.Fatal(err)
		}
	}
	path := frame.Address{Src: a[0], Dst: a[1], HopLimit: 64}
	e := &frame.Encoder{SourcePort: bth.Port}
	var bufs [20]driver.Buf
	if from.Alloc(bufs[:]) != len(bufs) {
		t.Fatal("no buffers")
	}
	for i := range bufs {
		bufs[i].B = packet(e, bufs[i].B, &path, bth.PSN(i), 1024)
	}
	change(c.set)
	if n, err := from.Send(bufs[:]); n != 0 || err != nil {
		t.Errorf("Send() = %d, %v; want 0 frames", n, err)
	}
	if s := from.Stats(); s.TxFrames != 0 || s.TxDropped != uint64(len(bufs)) {
		t.Errorf("Stats() = %+v, want %d dropped", s, len(bufs))
	}
	if note := from.Info().Note; !strings.Contains(note, c.want.Error()) {
		t.Errorf("Info().Note = %q, want the error %q", note, c.want)
	}
	change(c.undo)
	send(t, from, &path, 64)
	receive(t, p.Port[1], func(pkt *bth.Packet) {
		if len(pkt.Payload) != 64 {
			t.Errorf("%d bytes arrive, want 64", len(pkt.Payload))
		}
	})
}

// Packets that exceed the receive buffer are counted.
func TestReceiveBufferOverflow(t *testing.T) {
	p := pair(t, false)
	a := addrs(t, p, netip.Addr.Is4)
	path := frame.Address{Src: a[0], Dst: a[1], HopLimit: 64}
	info := p.Port[1].Info()
	if info.ReceiveBuffer == 0 {
		t.Fatal("Info().ReceiveBuffer = 0")
	}
	n := 0
	for ; n < info.ReceiveBuffer/2048+1; n++ { // each packet occupies more than 4096 bytes
		send(t, p.Port[0], &path, 4096)
		send(t, p.Port[0], &path, 4096)
	}
	if s := p.Port[1].(*udp.Port).Stats(); s.RxDropped == 0 || s.RxDropped >= uint64(2*n) {
		t.Errorf("RxDropped = %d of %d packets", s.RxDropped, 2*n)
	}
}

func TestNoAllocations(t *testing.T) {
	p := pair(t, false)
	a := addrs(t, p, netip.Addr.Is4)
	path := frame.Address{Src: a[0], Dst: a[1], HopLimit: 60, TrafficClass: 2}
	e := &frame.Encoder{SourcePort: bth.Port}
	bufs, got := make([]driver.Buf, 32), make([]driver.Buf, 32)
	if n := testing.AllocsPerRun(50, func() {
		n := p.Port[0].Alloc(bufs)
		for i := range bufs[:n] {
			bufs[i].B = packet(e, bufs[i].B, &path, bth.PSN(i), 64)
		}
		if sent, err := p.Port[0].Send(bufs[:n]); sent != 32 || err != nil {
			t.Fatalf("Send() = %d, %v", sent, err)
		}
		for have := 0; have < 32; {
			k := p.Port[1].Receive(got)
			p.Port[1].Release(got[:k])
			have += k
			_ = p.Port[1].Wait(time.Millisecond)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestMulticast(t *testing.T) {
	p := pair(t, true)
	for _, c := range []struct {
		group string
		addr  func(netip.Addr) bool
	}{
		{"239.1.2.3", netip.Addr.Is4},
		{"ff05::1:3", func(a netip.Addr) bool { return a.Is6() && !a.IsLinkLocalUnicast() }},
		{"ff02::1:3", netip.Addr.IsLinkLocalUnicast},
	} {
		t.Run(c.group, func(t *testing.T) {
			group := netip.MustParseAddr(c.group)
			a, g := addrs(t, p, c.addr), p.Port[1].(*udp.Port)
			if err := g.JoinGroup(group); err != nil {
				t.Fatal(err)
			}
			if err := g.JoinGroup(group); err == nil {
				t.Error("JoinGroup succeeds twice")
			}
			path := frame.Address{Src: a[0], Dst: bth.GIDFromAddr(group), HopLimit: 64}
			send(t, p.Port[0], &path, 64)
			receive(t, p.Port[1], func(pkt *bth.Packet) {
				if pkt.Dst != path.Dst || pkt.Src != a[0] {
					t.Errorf("received from %v to %v", pkt.Src, pkt.Dst)
				}
			})
			if err := g.LeaveGroup(group); err != nil {
				t.Fatal(err)
			}
			if err := g.LeaveGroup(group); err == nil {
				t.Error("LeaveGroup succeeds twice")
			}
			send(t, p.Port[0], &path, 64)
			path.Dst = a[1]
			send(t, p.Port[0], &path, 32)
			receive(t, p.Port[1], func(pkt *bth.Packet) {
				if len(pkt.Payload) != 32 {
					t.Error("a packet to the group arrives after LeaveGroup")
				}
			})
		})
	}
}

// bindFirst takes the UDP port of an address that the interface does not have yet.
func bindFirst(t *testing.T, end *veth.End, a netip.Addr) (release func()) {
	t.Helper()
	fd := -1
	if err := end.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		return errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_FREEBIND, 1),
			unix.Bind(fd, &unix.SockaddrInet4{Port: bth.Port, Addr: a.As4()}))
	}); err != nil {
		t.Fatal(err)
	}
	var once sync.Once
	release = func() { once.Do(func() { _ = unix.Close(fd) }) }
	t.Cleanup(release)
	return release
}

// The port follows the addresses of the interface, also if another program has its UDP port for a
// while, and notices that it is removed.
func TestAddressChanges(t *testing.T) {
	p := pair(t, true)
	port, end := p.Port[0].(*udp.Port), &p.Pair.A
	added := netip.MustParsePrefix("10.99.0.1/24")
	edit := func(f func(netlink.Link, *netlink.Addr) error) {
		t.Helper()
		if err := end.Do(func() error {
			l, err := netlink.LinkByName(end.Iface)
			if err != nil {
				return err
			}
			addr, err := netlink.ParseAddr(added.String())
			if err != nil {
				return err
			}
			return f(l, addr)
		}); err != nil {
			t.Fatal(err)
		}
	}
	await := func(what string, ok func() bool) {
		t.Helper()
		for deadline := time.Now().Add(10 * time.Second); !ok(); {
			if time.Now().After(deadline) {
				t.Fatalf("%s: the addresses are %v", what, port.Addrs())
			}
			_ = port.Wait(10 * time.Millisecond)
		}
	}
	has := func() bool { return slices.Contains(port.Addrs(), added) }
	release := bindFirst(t, end, added.Addr())
	edit(func(l netlink.Link, a *netlink.Addr) error { return netlink.AddrAdd(l, a) })
	await("in use", func() bool { return strings.Contains(port.Info().Note, added.Addr().String()) })
	if has() {
		t.Fatal("the port has an address that another program uses")
	}
	release()
	await("added", has)
	edit(func(l netlink.Link, a *netlink.Addr) error { return netlink.AddrDel(l, a) })
	await("removed", func() bool { return !has() })
	edit(func(l netlink.Link, _ *netlink.Addr) error { return netlink.LinkSetMTU(l, 1400) })
	await("MTU", func() bool { return port.Info().MTU == 1400 })
	edit(func(l netlink.Link, _ *netlink.Addr) error { return netlink.LinkDel(l) })
	await("deleted", func() bool { return errors.Is(port.Wait(0), driver.ErrGone) })
}

func TestResolve(t *testing.T) {
	p := pair(t, true)
	port := p.Port[0].(*udp.Port)
	a, b := p.Pair.A.IPv4.Addr(), p.Pair.B.IPv4.Addr()
	for _, c := range []struct {
		src, dst netip.Addr
		want     error
	}{
		{a, b, nil},
		{netip.Addr{}, b, nil},
		{a, a, nil}, // the kernel delivers it to this Port
		{b, b, driver.ErrNoAddress},
		{a, netip.MustParseAddr("192.0.2.77"), driver.ErrNoRoute},
		{a, netip.Addr{}, driver.ErrNoRoute},
		{a, netip.MustParseAddr("239.1.1.1"), nil},
	} {
		hop, err := port.Resolve(t.Context(), c.src, c.dst)
		if !errors.Is(err, c.want) || err == nil && (hop.Src != a || hop.MTU != 4200) {
			t.Errorf("Resolve(%v, %v) = %+v, %v; want %v", c.src, c.dst, hop, err, c.want)
		}
	}
}
