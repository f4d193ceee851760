package udp_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/udp"
	"github.com/gorxe/gorxe/xdp/veth"
)

// editAddr changes an address of a side.
func editAddr(t *testing.T, e *veth.End, text string,
	f func(netlink.Link, *netlink.Addr) error) {
	t.Helper()
	if err := e.Do(func() error {
		l, err := netlink.LinkByName(e.Iface)
		if err != nil {
			return err
		}
		a, err := netlink.ParseAddr(text)
		if err != nil {
			return err
		}
		return f(l, a)
	}); err != nil {
		t.Fatal(err)
	}
}

// An interface may have an address several times, with different prefixes. The port has one socket
// for it, and keeps it until the last one was removed.
func TestAddressWithSeveralPrefixes(t *testing.T) {
	p := open(t, testbed.Config{UDP: true, Veth: true})
	end := &p.Pair.A
	host := end.IPv4.Addr()
	wide := netip.PrefixFrom(host, 16).String()
	other := netip.MustParsePrefix("10.99.0.1/24")
	otherWide := netip.PrefixFrom(other.Addr(), 16)
	add := func(l netlink.Link, a *netlink.Addr) error { return netlink.AddrAdd(l, a) }
	del := func(l netlink.Link, a *netlink.Addr) error { return netlink.AddrDel(l, a) }
	editAddr(t, end, wide, add)
	editAddr(t, end, other.String(), add)
	editAddr(t, end, otherWide.String(), add)
	if err := p.Port[0].Close(); err != nil {
		t.Fatal(err)
	}
	port, err := udp.Open(end.Iface, udp.Options{NetNS: end.Fd()})
	if err != nil {
		t.Fatal(err)
	}
	p.Port[0] = port
	await := func(what string, want ...netip.Prefix) {
		t.Helper()
		for deadline := time.Now().Add(10 * time.Second); ; {
			got := slices.DeleteFunc(slices.Clone(port.Addrs()),
				func(q netip.Prefix) bool { return q.Addr() != other.Addr() })
			if slices.Equal(got, want) {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: the addresses are %v, want %v; %s", what, got, want, port.Info().Note)
			}
			_ = port.Wait(10 * time.Millisecond)
		}
	}
	await("opened", other, otherWide)
	editAddr(t, end, other.String(), del)
	await("one removed", otherWide)
	editAddr(t, end, otherWide.String(), del)
	await("both removed")
	editAddr(t, end, other.String(), add)
	editAddr(t, end, otherWide.String(), add)
	await("added again", other, otherWide)

	a := frame.Address{Src: bth.GIDFromAddr(p.Pair.B.IPv4.Addr()), Dst: bth.GIDFromAddr(host),
		SrcPort: bth.Port, HopLimit: 64}
	send(t, p.Port[1], &a, 100)
	receive(t, port, func(*bth.Packet) {})
}

// A port uses a limited number of addresses. Info.Note says so while there are more.
func TestManyAddresses(t *testing.T) {
	const more = 70
	p := open(t, testbed.Config{UDP: true, Veth: true})
	end := &p.Pair.A
	added := func(i int) string { return fmt.Sprintf("10.99.0.%d/32", i+1) }
	for i := range more {
		editAddr(t, end, added(i), func(l netlink.Link, a *netlink.Addr) error {
			return netlink.AddrAdd(l, a)
		})
	}
	await := func(port *udp.Port, note bool) {
		t.Helper()
		const want = "only the first 64 of"
		for deadline := time.Now().Add(10 * time.Second); ; {
			n, got := len(port.Addrs()), port.Info().Note
			if strings.Contains(got, want) == note && (n == 64) == note {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%d addresses, Info().Note = %q; note wanted: %v", n, got, note)
			}
			_ = port.Wait(10 * time.Millisecond)
		}
	}
	port := p.Port[0].(*udp.Port)
	await(port, true)
	if err := port.Close(); err != nil {
		t.Fatal(err)
	}
	port, err := udp.Open(end.Iface, udp.Options{NetNS: end.Fd()})
	if err != nil {
		t.Fatal(err)
	}
	p.Port[0] = port
	await(port, true)
	for i := range more {
		editAddr(t, end, added(i), func(l netlink.Link, a *netlink.Addr) error {
			return netlink.AddrDel(l, a)
		})
	}
	await(port, false)
}
