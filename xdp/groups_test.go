//go:build linux

package xdp

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/xdp/veth"
	"golang.org/x/sys/unix"
)

// Joining and leaving follow the kernel's limits, and the errors say what to do.
func TestGroups(t *testing.T) {
	pair := newPair(t, veth.Options{})
	a := openEnd(t, &pair.A, Options{})
	var _ driver.Groups = a
	group := netip.MustParseAddr("239.1.0.0")
	if err := a.LeaveGroup(group); !errors.Is(err, unix.EADDRNOTAVAIL) {
		t.Errorf("LeaveGroup before JoinGroup: %v", err)
	}
	if err := a.JoinGroup(hostB4); !errors.Is(err, ErrOptions) {
		t.Errorf("JoinGroup of a unicast address: %v", err)
	}
	var full error
	joined := []netip.Addr{}
	for g := group; full == nil && len(joined) < 1000; g = g.Next() {
		if full = a.JoinGroup(g); full == nil {
			joined = append(joined, g)
		}
	}
	if !errors.Is(full, unix.ENOBUFS) || len(joined) == 0 {
		t.Errorf("JoinGroup after %d groups: %v", len(joined), full)
	}
	six := netip.MustParseAddr("ff0e::1:2")
	if err := a.JoinGroup(six); err != nil {
		t.Errorf("JoinGroup of an IPv6 group: %v", err)
	}
	for _, g := range append(joined, six) {
		if err := a.LeaveGroup(g); err != nil {
			t.Errorf("LeaveGroup(%v): %v", g, err)
		}
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if err := a.JoinGroup(group); !errors.Is(err, ErrClosed) {
		t.Errorf("JoinGroup after Close: %v", err)
	}
}
