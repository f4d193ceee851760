package session

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/gorxe/gorxe/internal/exchange"
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
