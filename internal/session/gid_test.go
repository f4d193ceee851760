package session

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/gorxe/gorxe/internal/exchange"
	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
)

// A client may name any address of its own host, and no address of another host.
func TestCheckGID(t *testing.T) {
	link, err := loopback.NewLink(loopback.Config{Ports: 3})
	if err != nil {
		t.Fatal(err)
	}
	dev, err := roce.New(link.Port(0))
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	check := CheckGID(dev)
	addrs := func(i int) (list []netip.Addr) {
		for _, p := range link.Port(i).Addrs() {
			list = append(list, p.Addr())
		}
		return list
	}
	for _, peer := range addrs(1) {
		for _, own := range addrs(1) {
			if err := check(t.Context(), peer, roce.GIDFromAddr(own)); err != nil {
				t.Errorf("a client at %v names its address %v: %v", peer, own, err)
			}
		}
		for _, other := range append(addrs(2), netip.MustParseAddr("198.51.100.1"),
			netip.MustParseAddr("2001:db8:ffff::1"), addrs(0)[0]) {
			if err := check(t.Context(), peer, roce.GIDFromAddr(other)); !errors.Is(err,
				exchange.ErrAddress) {
				t.Errorf("a client at %v names %v: %v, want ErrAddress", peer, other, err)
			}
		}
	}
	// Clients behind a router have the MAC address of the router.
	if err := check(t.Context(), netip.MustParseAddr("198.51.100.1"),
		roce.GIDFromAddr(addrs(1)[0])); !errors.Is(err, exchange.ErrAddress) {
		t.Errorf("a client behind a router names %v: %v, want ErrAddress", addrs(1)[0], err)
	}
}

// A device on UDP sockets does not know MAC addresses. Its clients may name only their own address,
// and on loopback addresses any of them.
func TestCheckGIDOnSockets(t *testing.T) {
	for _, veth := range []bool{false, true} {
		bed, err := testbed.New(testbed.Config{UDP: true, Veth: veth})
		if testbed.Unavailable(err) {
			t.Skipf("no veth pair here (needs root): %v", err)
		}
		if err != nil {
			t.Fatal(err)
		}
		defer bed.Close()
		peer := bed.Addr(1, 0).Addr()
		other := peer.Next()
		check := CheckGID(bed.Dev[0])
		if err := check(t.Context(), peer, roce.GIDFromAddr(peer)); err != nil {
			t.Errorf("a client at %v names its own address: %v", peer, err)
		}
		err = check(t.Context(), peer, roce.GIDFromAddr(other))
		if want := peer.IsLoopback(); (err == nil) != want {
			t.Errorf("a client at %v names %v: %v", peer, other, err)
		}
	}
}
