package driver

import (
	"context"
	"net/netip"
	"time"

	"github.com/gorxe/gorxe/bth"
)

// Buf is one frame's buffer. B belongs to whoever holds the Buf; Token belongs to
// the Port and must come back unchanged.
type Buf struct {
	B     []byte
	Token uint64
}

// Port moves whole Ethernet frames, from the destination MAC to the ICRC.
//
// One thread owns a Port and makes every call; only Wake and Close may come from
// other goroutines.
type Port interface {
	// Info describes the port now; MTU and link state may change while it runs.
	Info() Info
	// Receive takes up to len(bufs) received frames without blocking and returns how
	// many. Each is contiguous and must be given back by Release.
	Receive(bufs []Buf) int
	// Release gives received frames back; their bytes are gone after it.
	Release(bufs []Buf)
	// Alloc hands out up to len(bufs) transmit buffers, each with len(B) = the largest
	// frame, and returns how many.
	Alloc(bufs []Buf) int
	// Send submits frames of len(B) bytes each, in order, and kicks until the kernel took
	// or dropped them all. It takes ownership of every buffer whatever it returns. n counts
	// the frames handed to the wire.
	Send(bufs []Buf) (n int, err error)
	// Free gives back buffers from Alloc that will not be sent.
	Free(bufs []Buf)
	// Wait blocks until a frame may be there, Wake was called, or d has passed (d < 0: no
	// limit).
	Wait(d time.Duration) error
	// Wake makes the current or else the next Wait return. Cheap; safe from any goroutine.
	Wake()
	// Close stops the port and frees what it holds. Idempotent; safe from any goroutine.
	Close() error
}

// Holder is a Port to which its owner can say that several calls follow at once, so that each need not look anew whether
// Close is under way. Between Hold and Unhold, which is soon, Close waits; the owner does not call Wait then.
type Holder interface {
	Hold()
	Unhold()
}

// Info describes a Port.
type Info struct {
	Name     string // interface name
	Datapath string // "afxdp-native", "afxdp-generic", "afxdp-zerocopy" or "memory"
	MAC      bth.MAC
	MTU      int // largest IP packet, bytes
	MaxFrame int // largest Ethernet frame a buffer holds, bytes
	Up       bool
	Queues   int
	Note     string // "", or a word to the user on a mode or MTU that may surprise
}

// Stats counts what went through a Port since it was opened.
type Stats struct {
	RxFrames, RxBytes uint64
	TxFrames, TxBytes uint64
	RxDropped         uint64 // received but lost before Receive: rings full, no buffers
	TxDropped         uint64 // given to Send but not taken by the wire
	Kicks             uint64 // system calls that start transmission
	Waits             uint64 // system calls that block
}

// Hop is how to reach a destination: the next hop's MAC and what to send from.
type Hop struct {
	MAC  bth.MAC
	VLAN uint16     // tag control information, 0 = untagged
	Src  netip.Addr // the local address to use
	MTU  int        // of the route, IP bytes
}

// Network is what a Port knows of the IP network around it. Ports of xdp and
// loopback implement it beside Port. Safe from any goroutine.
type Network interface {
	// Addrs lists the port's addresses, the order of the GID table: link-local IPv6
	// first, then IPv4, then other IPv6.
	Addrs() []netip.Prefix
	// Resolve finds the next hop towards dst; the zero src lets it choose. It may block
	// for a neighbour look-up, within ctx.
	Resolve(ctx context.Context, src, dst netip.Addr) (Hop, error)
	// Changed yields a value (capacity 1) after addresses, link, MTU or neighbours changed.
	Changed() <-chan struct{}
}

// Groups is what a Network implements beside if its interface can join multicast groups, so that switches, the NIC's
// filter and routers let their packets through to the Port. Safe from any goroutine.
type Groups interface {
	// JoinGroup makes the host a member on the port's interface (IGMP for IPv4, MLD for IPv6), until LeaveGroup or
	// the port's end. Joining twice is an error.
	JoinGroup(group netip.Addr) error
	LeaveGroup(group netip.Addr) error
}
