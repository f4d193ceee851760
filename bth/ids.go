package bth

import "fmt"

// Port is RoCEv2's UDP destination port (IBA annex A17).
const Port = 4791

// Sizes in bytes.
const (
	HeaderLen    = 12                    // BTH
	MaxExtLen    = 28                    // the longest run of extension headers: AtomicETH
	MaxHeaderLen = HeaderLen + MaxExtLen // BTH and all extension headers of any opcode
	ICRCLen      = 4                     // invariant CRC behind the pad
	MaxNetHeader = 14 + 4 + 40 + 8       // Ethernet, one VLAN tag, IPv6, UDP
)

// mask24 covers the 24-bit numbers: PSN, MSN, QPN.
const mask24 = 1<<24 - 1

// PSN is a packet sequence number: 24 bits, counted modulo 2^24. Compare two of
// them by the methods only: < and > are wrong across the wrap (IBA 9.7.2).
type PSN uint32

// Add returns the PSN that comes n packets later.
func (p PSN) Add(n uint32) PSN { return (p + PSN(n)) & mask24 }

// Next returns the PSN of the following packet.
func (p PSN) Next() PSN { return (p + 1) & mask24 }

// Prev returns the PSN of the packet before.
func (p PSN) Prev() PSN { return (p - 1) & mask24 }

// Sub returns the signed distance p-q in packets, in [-2^23, 2^23): positive
// when p comes after q.
func (p PSN) Sub(q PSN) int32 { return int32(uint32(p-q)<<8) >> 8 }

// Before reports whether p lies in the half of the number circle before q.
func (p PSN) Before(q PSN) bool { return p.Sub(q) < 0 }

// After reports whether p lies in the half of the number circle behind q.
func (p PSN) After(q PSN) bool { return p.Sub(q) > 0 }

// String returns the PSN in hexadecimal, as rxe's traces and tshark's users know it.
func (p PSN) String() string { return fmt.Sprintf("0x%06x", uint32(p)) }

// MSN is a message sequence number: 24 bits, modulo 2^24 (IBA 9.7.7.1).
type MSN uint32

// Next returns the MSN after one more completed message.
func (m MSN) Next() MSN { return (m + 1) & mask24 }

// QPN is a queue pair number: 24 bits.
type QPN uint32

// String returns the QPN in hexadecimal.
func (q QPN) String() string { return fmt.Sprintf("0x%06x", uint32(q)) }

const (
	// QPNGSI is QP1, the general services interface: connection managers talk there.
	QPNGSI QPN = 1
	// QPNMulticast is the destination QPN of every multicast packet (IBA 10.5).
	QPNMulticast QPN = mask24
)

// PKey is a partition key: bit 15 says full member, the rest names the partition (IBA 10.9).
type PKey uint16

// DefaultPKey is the default partition, full membership; the only one in RoCE practice.
const DefaultPKey PKey = 0xffff

// Matches reports whether packets with key q may reach an owner of key p: the same
// partition, and not both limited members (IBA 10.9.3).
func (p PKey) Matches(q PKey) bool {
	return (p^q)&0x7fff == 0 && (p|q)&0x8000 != 0
}

// QKey is the key that guards a datagram QP. With bit 31 set it is a controlled
// one.
type QKey uint32

// QKeyGSI is the well-known Q_Key of QP1.
const QKeyGSI QKey = 0x80010000

// RKey names a memory region to a remote peer.
type RKey uint32

// LKey names a memory region to its own host. It is never on the wire.
type LKey uint32

// MAC is an Ethernet address.
type MAC [6]byte

// String returns the address as "02:00:00:00:00:01".
func (m MAC) String() string {
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", m[0], m[1], m[2], m[3], m[4], m[5])
}
