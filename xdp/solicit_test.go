package xdp

import (
	"context"
	"net/netip"
	"runtime"
	"testing"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/xdp/veth"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// withoutCapabilities runs f on a thread that has no effective capabilities.
func withoutCapabilities(t *testing.T, f func()) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var had [2]unix.CapUserData
	if err := unix.Capget(&hdr, &had[0]); err != nil {
		t.Fatal(err)
	}
	none := had
	none[0].Effective, none[1].Effective = 0, 0
	if err := unix.Capset(&hdr, &none[0]); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Capset(&hdr, &had[0]); err != nil {
			t.Errorf("restore the capabilities: %v", err)
		}
	}()
	f()
}

// Resolve works without capabilities: for unknown neighbors, known ones and gateways.
func TestResolveWithoutCapabilities(t *testing.T) {
	pair := newPair(t, veth.Options{})
	a := openEnd(t, &pair.A, Options{})
	b := openEnd(t, &pair.B, Options{})
	addRoute(t, &pair.A, "198.51.100.0/24", "10.77.0.2", 0)
	onLink(t, &pair.A, func(l netlink.Link) error {
		for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
			list, err := netlink.NeighList(l.Attrs().Index, family)
			if err != nil {
				return err
			}
			for i := range list {
				_ = netlink.NeighDel(&list[i])
			}
		}
		return nil
	})
	withoutCapabilities(t, func() {
		for _, dst := range []netip.Addr{hostB4, hostB6, b.Addrs()[0].Addr(), hostB4,
			addr("198.51.100.7")} {
			hop, err := a.Resolve(context.Background(), netip.Addr{}, dst)
			if err != nil || hop.MAC != bth.MAC(pair.B.MAC) {
				t.Errorf("Resolve(%v) = %+v, %v; want MAC %v", dst, hop, err, pair.B.MAC)
			}
		}
	})
}
