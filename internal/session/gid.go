package session

import (
	"context"
	"net/netip"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/internal/exchange"
	"github.com/gorxe/gorxe/roce"
)

// resolveTime limits the neighbor lookups of CheckGID.
const resolveTime = 2 * time.Second

// CheckGID returns the rule by which servers on dev check the GIDs that their clients name, for
// exchange.Server.CheckGID. A GID must be the address of the client's TCP connection, or another
// address of the same host: both must be in subnets of the interface and have the same MAC address,
// or both must be loopback addresses. A device on UDP sockets does not know MAC addresses.
//
// perftest and the ping-pong programs often connect over IPv4 and use an IPv6 GID. A client behind
// a router must connect from the address of its GID. In networks where a router answers ARP
// requests for other hosts (proxy ARP), their addresses look like those of one host.
func CheckGID(dev *roce.Device) func(ctx context.Context, peer netip.Addr, gid roce.GID) error {
	return func(ctx context.Context, peer netip.Addr, gid roce.GID) error {
		err := exchange.SameAddr(ctx, peer, gid)
		if err == nil || peer.IsLoopback() && gid.Addr().IsLoopback() {
			return nil
		}
		ctx, cancel := context.WithTimeout(ctx, resolveTime)
		defer cancel()
		own, ok := neighbor(ctx, dev, roce.GIDFromAddr(peer))
		if !ok {
			return err
		}
		if named, ok := neighbor(ctx, dev, gid); !ok || named != own {
			return err
		}
		return nil
	}
}

// neighbor returns the MAC address of a host in a subnet of the interface.
func neighbor(ctx context.Context, dev *roce.Device, gid roce.GID) (bth.MAC, bool) {
	const any = -1
	for _, p := range dev.Subnets() {
		if !p.Contains(gid.Addr()) {
			continue
		}
		path, _, err := dev.ResolvePath(ctx, any, gid, roce.PathOptions{})
		if err != nil {
			return bth.MAC{}, false
		}
		mac := path.Address().DstMAC
		return mac, mac != bth.MAC{}
	}
	return bth.MAC{}, false
}
