package roce

import (
	"net/netip"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/frame"
)

// Addresses, numbers and keys. They are unsigned integers in host byte order, except GID and MAC,
// which are byte arrays. Package bth shows their methods.
type (
	// GID is an address in RoCEv2: an IPv6 address, or an IPv4 address as ::ffff:a.b.c.d. Its
	// method Addr returns the netip.Addr, String the notation that ParseGID parses.
	GID = bth.GID
	// MAC is an Ethernet address.
	MAC = bth.MAC
	// QPN is the number of a queue pair, 24 bits.
	QPN = bth.QPN
	// PSN is a packet sequence number, 24 bits.
	PSN = bth.PSN
	// RKey is the key with which a peer names a memory region or window.
	RKey = bth.RKey
	// LKey is the key with which local work requests name a memory region.
	LKey = bth.LKey
	// PKey is a partition key: bit 15 marks a full member, the other bits name the partition. See
	// WithPKeys.
	PKey = bth.PKey
	// QKey authorizes datagrams to a UD queue pair.
	QKey = bth.QKey
	// MTU is a path MTU in bytes of payload per packet: 256, 512, 1024, 2048 or 4096.
	MTU = bth.MTU
)

// GIDFromAddr returns the GID of an IP address. A zone is ignored.
func GIDFromAddr(a netip.Addr) GID { return bth.GIDFromAddr(a) }

// ParseGID parses a GID in the notation of an IPv4 or IPv6 address.
func ParseGID(s string) (GID, error) { return bth.ParseGID(s) }

// Path holds the addresses and the prepared Ethernet, IP and UDP headers of packets to a peer, for
// Attr.Path. Device.ResolvePath returns one. Programs need not look inside.
type Path = frame.Path

// Limits of queues, work requests and QP attributes.
const (
	MaxQueueDepth = 1 << 15 // work requests of a send, receive or shared receive queue
	MaxCQDepth    = 1 << 22 // completions of a CQ
	MaxSGE        = 16      // SGEs of a work request
	MaxInline     = 1024    // bytes of SendWR.Inline
	MaxMessage    = 1 << 31 // bytes of a message
	MaxRdAtomic   = 128     // outstanding READs and atomics
	MaxAckTimeout = 20      // Local ACK Timeout that Accept takes from the peer: 4.3 s
)

// DefaultPKey is the key of a full member of the default partition, the only one of the kernel's
// rxe.
const DefaultPKey PKey = 0xffff

// GRHLen is the number of bytes at the front of a UD receive buffer that hold the sender's network
// header (IBA 11.4.1.2): an IPv6 header, or an IPv4 header in the last 20 bytes.
const GRHLen = 40

// RemoteBuffer describes a memory region to a peer, which needs it for WRITE, READ and atomics. It
// marshals to JSON, and to a binary form of RemoteBufferLen bytes that fits in the private data of
// a connection.
type RemoteBuffer struct {
	Addr uint64 `json:"addr"` // address of the first byte, for SendWR.RemoteAddr
	RKey RKey   `json:"rkey"`
	Len  uint64 `json:"len"` // bytes
}

// Endpoint describes one side of a connection to the other side, which passes it to QP.Connect.
// Exchange it over any channel. It marshals to JSON.
type Endpoint struct {
	QPN  QPN  `json:"qpn"`
	PSN  PSN  `json:"psn"`  // the first PSN that this side sends
	GID  GID  `json:"gid"`  // this side's address
	MTU  MTU  `json:"mtu"`  // the largest path MTU that this side's interface supports
	PKey PKey `json:"pkey"` // the partition; 0: not known
	QKey QKey `json:"qkey"` // UD only
	// Features are the extensions of RoCEv2 that this side supports (RC). JSON without them, as of
	// peers that do not know them, means none.
	Features Features `json:"features,omitzero"`
	// Class is the traffic class that this side has chosen: see QPConfig.Class. JSON without it, as
	// of peers that do not know it, means 0.
	Class uint8 `json:"class,omitzero"`
}
