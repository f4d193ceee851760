//go:build linux

package xdp

import (
	"context"
	"net/netip"
	"testing"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/xdp/veth"
	"github.com/vishvananda/netlink"
)

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
	withCapabilities(t, nil, func() {
		for _, dst := range []netip.Addr{hostB4, hostB6, b.Addrs()[0].Addr(), hostB4,
			addr("198.51.100.7")} {
			hop, err := a.Resolve(context.Background(), netip.Addr{}, dst)
			if err != nil || hop.MAC != bth.MAC(pair.B.MAC) {
				t.Errorf("Resolve(%v) = %+v, %v; want MAC %v", dst, hop, err, pair.B.MAC)
			}
		}
	})
}
