// Package blocks holds what the transports that move blocks share: the agreement on the number and
// size of blocks, and the objects of one side of a connection.
//
// Reading order:
//
//   - sizes.go: the agreement on sizes.
//   - listener.go: accepting connections with the same sizes.
//   - blocks.go: endpoints and local addresses.
package blocks

import (
	"net/netip"

	"github.com/gorxe/gorxe/internal/endpoint"
	"github.com/gorxe/gorxe/roce"
)

// Depths are the capacities of the queues, in work requests and completions.
type Depths struct {
	Send, SendCQ int
	Recv, RecvCQ int  // RecvCQ 0: one completion queue for both
	Inline       int  // bytes
	GID          *int // local GID index; see GIDFor
}

// TransmitFrom is the block size in bytes from which a program that drives its device transmits
// each block as soon as it is posted. Such a block nearly fills a batch of frames, so waiting for
// more gains nothing, and the peer processes it while the next one is built.
const TransmitFrom = 16 << 10

// NewEndpoint creates an endpoint with one RC queue pair in state INIT.
func NewEndpoint(dev *roce.Device, d Depths) (*endpoint.Endpoint, error) {
	return endpoint.New(dev, endpoint.Config{
		QP: roce.QPConfig{
			SendDepth: d.Send, RecvDepth: d.Recv, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: d.Inline,
			GIDIndex: d.GID,
		},
		SendCQ: d.SendCQ, RecvCQ: d.RecvCQ,
	})
}

// GIDFor returns the index of the GID with the address own, or else of the first GID of the same
// kind. Nil means that the device chooses.
func GIDFor(dev *roce.Device, own netip.Addr) *int {
	own = own.Unmap().WithZone("")
	var like *int
	for _, g := range dev.GIDs() {
		a := g.Addr.Unmap().WithZone("")
		if a == own {
			return &g.Index
		}
		if like == nil && a.Is4() == own.Is4() &&
			a.IsLinkLocalUnicast() == own.IsLinkLocalUnicast() {
			like = &g.Index
		}
	}
	return like
}
