package bth

import "fmt"

// Port is the UDP destination port of RoCEv2 (IBA annex A17).
const Port = 4791

// Sizes in bytes.
const (
	HeaderLen    = 12                    // BTH
	MaxExtLen    = 28                    // the longest extension headers of any opcode: AtomicETH
	MaxHeaderLen = HeaderLen + MaxExtLen // BTH and extension headers of any opcode
	ICRCLen      = 4                     // invariant CRC after the pad
	MaxNetHeader = 14 + 4 + 40 + 8       // Ethernet, one VLAN tag, IPv6, UDP
)

// mask24 selects the bits of a 24-bit number: PSN, MSN or QPN.
const mask24 = 1<<24 - 1

// PSN is a packet sequence number: 24 bits, modulo 2^24. Compare two PSNs with the methods, because
// < and > are wrong across the wrap (IBA 9.7.2).
type PSN uint32

// Add returns the PSN of the packet n packets later.
func (p PSN) Add(n uint32) PSN { return (p + PSN(n)) & mask24 }

// Next returns the PSN of the next packet.
func (p PSN) Next() PSN { return (p + 1) & mask24 }

// Prev returns the PSN of the previous packet.
func (p PSN) Prev() PSN { return (p - 1) & mask24 }

// Sub returns the signed distance p-q in packets, in [-2^23, 2^23). It is positive if p follows q.
func (p PSN) Sub(q PSN) int32 { return int32(uint32(p-q)<<8) >> 8 }

// Before reports whether p precedes q, that is, whether p.Sub(q) < 0.
func (p PSN) Before(q PSN) bool { return p.Sub(q) < 0 }

// After reports whether p follows q, that is, whether p.Sub(q) > 0.
func (p PSN) After(q PSN) bool { return p.Sub(q) > 0 }

// String returns the PSN in hexadecimal, such as "0x00abcd".
func (p PSN) String() string { return fmt.Sprintf("0x%06x", uint32(p)) }

// MSN is a message sequence number: 24 bits, modulo 2^24 (IBA 9.7.7.1).
type MSN uint32

// Next returns the MSN after one more completed message.
func (m MSN) Next() MSN { return (m + 1) & mask24 }

// QPN is a queue pair number: 24 bits.
type QPN uint32

// String returns the QPN in hexadecimal, such as "0x000011".
func (q QPN) String() string { return fmt.Sprintf("0x%06x", uint32(q)) }

const (
	// QPNGSI is QP1, the general services interface, which connection managers use.
	QPNGSI QPN = 1
	// QPNMulticast is the destination QPN of every multicast packet (IBA 10.5).
	QPNMulticast QPN = mask24
)

// PKey is a partition key: bit 15 marks a full member, the other bits name the partition (IBA
// 10.9).
type PKey uint16

// DefaultPKey is the default partition with full membership, the only P_Key in common use with
// RoCE.
const DefaultPKey PKey = 0xffff

// Matches reports whether a packet with key q may reach a QP with key p: both name the same
// partition and at least one is a full member (IBA 10.9.3).
func (p PKey) Matches(q PKey) bool {
	return (p^q)&0x7fff == 0 && (p|q)&0x8000 != 0
}

// QKey is the key that protects a datagram QP. Bit 31 marks a controlled Q_Key.
type QKey uint32

// QKeyGSI is the well-known Q_Key of QP1.
const QKeyGSI QKey = 0x80010000

// RKey identifies a memory region to remote peers.
type RKey uint32

// LKey identifies a memory region to the local host. It never appears on the wire.
type LKey uint32

// MAC is an Ethernet address.
type MAC [6]byte

// String returns the address as "02:00:00:00:00:01".
func (m MAC) String() string {
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", m[0], m[1], m[2], m[3], m[4], m[5])
}
