package roce_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/internal/endpoint"
	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/udp"
	"github.com/gorxe/gorxe/xdp/veth"
)

// openKinds opens a device with a kind of port on each end of a veth pair.
func openKinds(t *testing.T, kinds [2]roce.PortKind, o veth.Options) (dev [2]*roce.Device, pair *veth.Pair) {
	t.Helper()
	pair, err := veth.New(o)
	if testbed.Unavailable(err) {
		t.Skipf("no veth pair here (needs root): %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pair.Close() })
	for i, end := range []*veth.End{&pair.A, &pair.B} {
		if dev[i], err = roce.Open(end.Iface, roce.WithPort(kinds[i]),
			roce.WithXDP(roce.XDPOptions{NetNS: end.Fd()})); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { dev[i].Close() })
		if got := dev[i].Info().Port; got != kinds[i].String() {
			t.Fatalf("Info().Port = %q, want %q", got, kinds[i])
		}
	}
	return dev, pair
}

// Devices on UDP sockets and on AF_XDP understand each other: connections over IPv4 and IPv6 in
// both roles, and operations in both directions. With offloads, runs of packets arrive uncut.
func TestKindsOfPorts(t *testing.T) {
	for _, c := range []struct {
		kinds    [2]roce.PortKind
		offloads bool
	}{
		{[2]roce.PortKind{roce.PortUDP, roce.PortUDP}, true},
		{[2]roce.PortKind{roce.PortUDP, roce.PortXDP}, false},
		{[2]roce.PortKind{roce.PortUDP, roce.PortXDP}, true},
		{[2]roce.PortKind{roce.PortXDP, roce.PortUDP}, true},
		{[2]roce.PortKind{roce.PortXDP, roce.PortXDP}, true},
	} {
		dev, pair := openKinds(t, c.kinds, veth.Options{Offloads: c.offloads})
		for _, addr := range []netip.Addr{pair.B.IPv4.Addr(), pair.B.IPv6.Addr()} {
			t.Run(fmt.Sprint(c.kinds[0], " to ", c.kinds[1], " ", addr, " offloads=", c.offloads),
				func(t *testing.T) { testTransfers(t, dev, addr) })
		}
	}
}

// testTransfers connects the devices, and moves data by WRITE and READ in both directions.
func testTransfers(t *testing.T, dev [2]*roce.Device, addr netip.Addr) {
	const size = 300_000
	var e [2]*endpoint.Endpoint
	for i := range e {
		var err error
		if e[i], err = endpoint.New(dev[i], endpoint.Config{Memory: 2 * size}); err != nil {
			t.Fatal(err)
		}
		defer e[i].Close()
	}
	l, err := dev[1].Listen(netip.AddrPortFrom(addr, 7), roce.ListenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	accepted := make(chan error, 1)
	go func() {
		req, err := l.Accept(t.Context())
		if err == nil {
			_, err = req.Accept(t.Context(), e[1].QP, roce.AcceptOptions{})
		}
		accepted <- err
	}()
	if _, err := dev[0].Dial(t.Context(), netip.AddrPortFrom(addr, 7), e[0].QP,
		roce.DialOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := <-accepted; err != nil {
		t.Fatal(err)
	}
	for i, from := range e {
		to := e[1-i]
		for k := range size {
			from.MR.Bytes()[k] = byte(k*7 + i)
		}
		clear(to.MR.Bytes()[size:])
		write := roce.SendWR{Op: roce.OpWrite, Flags: roce.Signaled,
			SGEs:       []roce.SGE{from.MR.SGE(0, size)},
			RemoteAddr: to.MR.Remote().Addr + size, RKey: to.MR.Remote().RKey}
		read := roce.SendWR{Op: roce.OpRead, Flags: roce.Signaled,
			SGEs:       []roce.SGE{to.MR.SGE(size, size)},
			RemoteAddr: from.MR.Remote().Addr, RKey: from.MR.Remote().RKey}
		for _, c := range []struct {
			by *endpoint.Endpoint
			wr roce.SendWR
		}{{from, write}, {to, read}} {
			clear(to.MR.Bytes()[size:])
			if err := c.by.QP.PostSend(c.wr); err != nil {
				t.Fatal(err)
			}
			var wcs [1]roce.WC
			if n, err := c.by.CQ.Wait(t.Context(), wcs[:]); err != nil || n != 1 ||
				wcs[0].Status != roce.Success {
				t.Fatalf("%v: %v, %v", c.wr.Op, wcs[0].Status, err)
			}
			to.MR.Load8(2*size - 1) // after it, plain reads see everything that the peer wrote
			if !bytes.Equal(from.MR.Bytes()[:size], to.MR.Bytes()[size:]) {
				t.Fatalf("%v: the data differs", c.wr.Op)
			}
		}
	}
	for i := range dev {
		if n := dev[i].Counters().Drops[frame.ReasonICRC]; n > 0 {
			t.Errorf("device %d has dropped %d packets with a bad ICRC", i, n)
		}
	}
}

// Two devices on loopback addresses connect, also while packets get lost.
func TestLoopbackAddresses(t *testing.T) {
	bed, err := testbed.New(testbed.Config{UDP: true, Plan: loopback.Plan{Loss: 0.01}, Seed: 3})
	if err != nil {
		t.Fatal(err)
	}
	defer bed.Close()
	testTransfers(t, bed.Dev, bed.Dev[1].GIDs()[0].Addr)
}

// Open reports which port it has chosen and why, and that an address is in use.
func TestOpenAddress(t *testing.T) {
	addr := udp.RandomLoopback().String()
	dev, err := roce.Open(addr)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	if i := dev.Info(); i.Port != "udp" || i.Datapath != "udp" || i.PortReason == "" {
		t.Errorf("Info() = %+v", i)
	}
	if d, err := roce.Open(addr, roce.WithPort(roce.PortUDP)); !errors.Is(err, roce.ErrPortInUse) {
		t.Errorf("Open(%s) again = %v, want %v", addr, err, roce.ErrPortInUse)
		if err == nil {
			d.Close()
		}
	}
	if _, err := roce.Open(addr, roce.WithPort(roce.PortXDP)); !errors.Is(err, roce.ErrInvalid) {
		t.Errorf("Open(%s) with PortXDP = %v, want %v", addr, err, roce.ErrInvalid)
	}
	if _, err := roce.Open("lo", roce.WithPort(roce.PortXDP)); !errors.Is(err,
		roce.ErrUnsupported) {
		t.Errorf("Open(lo) with PortXDP = %v, want %v", err, roce.ErrUnsupported)
	}
	if _, err := roce.Open("lo", roce.WithPort(3)); !errors.Is(err, roce.ErrInvalid) {
		t.Errorf("Open(lo) with an unknown kind = %v, want %v", err, roce.ErrInvalid)
	}
	for k := range roce.PortUDP + 1 {
		if got, err := roce.ParsePortKind(k.String()); got != k || err != nil {
			t.Errorf("ParsePortKind(%q) = %v, %v", k, got, err)
		}
	}
	if _, err := roce.ParsePortKind("tcp"); !errors.Is(err, roce.ErrInvalid) {
		t.Errorf("ParsePortKind(tcp) = %v, want %v", err, roce.ErrInvalid)
	}
}
