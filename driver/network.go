package driver

import (
	"context"
	"net/netip"

	"github.com/gorxe/gorxe/bth"
)

// Network is what a Port knows about the IP network around it. The ports of this module implement
// it. All methods are safe for concurrent use.
type Network interface {
	// Addrs returns the addresses of the interface in the order of the GID table: link-local IPv6
	// addresses first, then IPv4, then other IPv6. The result must not be modified.
	Addrs() []netip.Prefix

	// Resolve finds the next hop towards dst. If src is the zero Addr, Resolve selects the source
	// address; otherwise src must be an address of the interface. It may block until ctx is done
	// while it waits for an answer to ARP or neighbor discovery.
	Resolve(ctx context.Context, src, dst netip.Addr) (Hop, error)

	// Changed returns a channel of capacity 1 that receives a value after addresses, link, MTU,
	// routes or neighbors have changed. One value may report several changes.
	Changed() <-chan struct{}
}

// Hop describes how to reach a destination.
type Hop struct {
	MAC  bth.MAC    // of the next hop, or the multicast MAC
	VLAN uint16     // tag control information; 0 = untagged; the ID is that of Info.VLAN
	Src  netip.Addr // local address to send from
	MTU  int        // of the route: largest IP packet, bytes
}

// Finder is an optional interface of a Network that remembers next hops and follows their changes.
// All methods are safe for concurrent use.
type Finder interface {
	// Find returns the next hop towards dst if it is known, without waiting for other hosts. src
	// must be an address of the interface. Otherwise it starts to look for it, and Changed reports
	// when it is known. Calls are cheap as long as nothing has changed, and must be repeated at
	// least every two minutes for next hops that are to be followed.
	Find(src, dst netip.Addr) (hop Hop, ok bool)
}

// Router is an optional interface of a Network that knows where routes lead. A device refuses
// datagrams from other addresses. All methods are safe for concurrent use.
type Router interface {
	// Routes returns the prefixes that routes over the port's interface lead to, in any order. The
	// result must not be modified. If it is nil, the routes are not known.
	Routes() []netip.Prefix
}

// Groups is an optional interface of a Network that can join multicast groups, so that switches,
// routers and the NIC's filter pass their packets to the Port. All methods are safe for concurrent
// use.
type Groups interface {
	// JoinGroup makes the host a member of the group on the port's interface (IGMP or MLD) until
	// LeaveGroup or Close. It is an error to join a group twice.
	JoinGroup(group netip.Addr) error
	// LeaveGroup ends a membership. It is an error to leave a group that was not joined.
	LeaveGroup(group netip.Addr) error
}
