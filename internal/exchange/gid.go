package exchange

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/gorxe/gorxe/roce"
)

// The sender of a request chooses the GID that the server sends RDMA packets to. If it could choose
// any GID, a few bytes over TCP would make the server send megabytes to a third host. The TCP
// handshake proves that the client receives packets at its own address, so a server accepts only
// GIDs that it can relate to this address.

// ErrAddress means that a peer named the GID of another host.
var ErrAddress = errors.New("the GID does not belong to the client's TCP connection")

// SameAddr returns nil if gid is the address of the peer of a TCP connection. IPv4 and IPv4-mapped
// addresses are the same, and the zone of a link-local address is ignored.
func SameAddr(_ context.Context, peer netip.Addr, gid roce.GID) error {
	if peer = peer.Unmap().WithZone(""); gid.Addr().Unmap() == peer {
		return nil
	}
	return fmt.Errorf("%w: the GID is %v, but the client connected from %v: "+
		"let the client use the GID with that address (-x, or -g of a ping-pong program)", ErrAddress, gid.Addr().Unmap(), peer)
}

// CheckGID returns an error if the peer may not use gid. A server must call it for each GID that
// a client sends, before it connects a queue pair.
func (c *Conn) CheckGID(ctx context.Context, gid roce.GID) error {
	if c.checkGID != nil {
		return c.checkGID(ctx, c.peer(), gid)
	}
	return SameAddr(ctx, c.peer(), gid)
}

func (c *Conn) checkGIDs(ctx context.Context, qps []QP) error {
	var last roce.GID
	for i := range qps {
		gid := qps[i].Endpoint.GID
		if i > 0 && gid == last {
			continue
		}
		if err := c.CheckGID(ctx, gid); err != nil {
			return err
		}
		last = gid
	}
	return nil
}

// peer returns the address of the peer.
func (c *Conn) peer() netip.Addr { return c.Remote().AddrPort().Addr().Unmap() }
