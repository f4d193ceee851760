package device

import (
	"context"
	"net/netip"

	"github.com/gorxe/gorxe/roce"
)

// FindPeer resolves host and, if iface is empty, finds the interface of the route to it.
func FindPeer(ctx context.Context, host, iface string) (*Peer, error) {
	return findPeer(ctx, host, iface)
}

// Only returns the only interface that gorxe can use.
func Only() (string, error) {
	var f Flags
	err := f.SetDefaultIface()
	return f.Iface, err
}

// WhileThere is WhilePresent.
func WhileThere(ctx context.Context, dev *roce.Device) (context.Context, context.CancelFunc) {
	return WhilePresent(ctx, dev)
}

// GIDFor is GIDIndex.Choose.
func (f *Flags) GIDFor(dev *roce.Device, local netip.Addr) (*int, error) {
	return f.GIDIndex.Choose(dev, local)
}
