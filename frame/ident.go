package frame

import (
	"encoding/binary"
	"hash/crc32"
	"math/bits"

	"github.com/gorxe/gorxe/bth"
)

// Ports on sockets do not see the identification of received IPv4 packets, which the ICRC covers.
// This file recovers it.
//
// CRCs are linear. The ICRC of a packet xor the ICRC that it would have with another identification
// is the product of the xor of both identifications and x^(8*n) mod P, where n is the number of
// bytes that follow. To multiply this residue by x^(-8*n) gives the identification. A corrupted
// packet gives 32 random bits, of which 16 must be zero: the remaining strength of the check is 16
// bits.
//
// Senders count identifications, so most values are implausible. A flow is one pair of addresses.
// Each of its packets but the first may have only an identification from identBehind before to
// identAhead after the last one, and identRate more for each microsecond that has passed since
// then. For a flow of 1000 packets per second or more, the check has a strength of 20 bits, and
// after a pause of 32 ms 16 bits. A packet whose identification is what the port assumed is always
// accepted.
//
// A sender may send some packets in runs, whose identifications start at 0, and number the others.
// So identifications below MaxRunIDs are always plausible.
//
// The limit may be too narrow: senders use one counter for several destinations. Each refused
// packet widens it, so a flow loses at most identRefusals packets in a row.

const (
	identBehind   = 128     // packets may overtake each other, and the segments of a run start at 0
	identAhead    = 1 << 11 // what a sender numbers before the receiver looks at the first packet
	identRate     = 2       // packets per microsecond that a sender numbers
	identWiden    = 32      // factor on the limit after a refused packet
	identRefusals = 2
	identFlows    = 1 << 10 // flows that are remembered
	identAll      = 1 << 16

	lenBeforeID = 6 // bytes of the IPv4 header up to the end of the identification
	identFactor = 64
)

// identifications recovers the identifications of received packets.
type identifications struct {
	now     int64 // microseconds
	flows   [identFlows]identFlow
	factors [identFactor]identFactors
}

// identFlow is what is known about a pair of IPv4 addresses.
type identFlow struct {
	key  uint64 // both addresses
	time int64  // of the last packet, microseconds
	last uint16 // the largest identification
	wide uint32 // the limit, apart from time; 0: no packet yet
}

// identFactors is x^(-8*n), in reflected bit order.
type identFactors struct {
	n      int
	factor uint32
}

// RecoverIDs makes the Decoder accept IPv4 packets whose identification is unknown. Decode first
// assumes the identification in the header. If the ICRC is wrong, it looks for one with which it is
// correct and which the sender may plausibly have used, and writes it into the header. SetTime must
// be called from time to time.
func (d *Decoder) RecoverIDs() { d.idents = new(identifications) }

// SetTime sets the time of the packets that follow, in nanoseconds of any clock. It matters only
// after RecoverIDs.
func (d *Decoder) SetTime(ns int64) {
	if d.idents != nil {
		d.idents.now = ns / 1000
	}
}

// recovers reports whether another identification makes the ICRC of a packet correct. crc is the
// ICRC that it should have.
func (d *Decoder) recovers(ip []byte, crc uint32) bool {
	if d.idents == nil || ip[0]>>4 != 4 {
		return false
	}
	end := len(ip) - bth.ICRCLen
	return d.idents.recover(ip[:end], crc^binary.LittleEndian.Uint32(ip[end:]))
}

// recover looks for the identification with which the ICRC is correct. residue is the xor of the
// two ICRCs, and ip a packet from the IPv4 header to the pad.
func (x *identifications) recover(ip []byte, residue uint32) bool {
	w := mulCRC(residue, x.factor(len(ip)-lenBeforeID))
	if w>>16 != 0 {
		return false
	}
	id := binary.BigEndian.Uint16(ip[4:]) ^ bits.ReverseBytes16(uint16(w))
	if !x.plausible(binary.BigEndian.Uint64(ip[12:]), id) {
		return false
	}
	binary.BigEndian.PutUint16(ip[10:], 0)
	binary.BigEndian.PutUint16(ip[4:], id)
	binary.BigEndian.PutUint16(ip[10:], ^sumIPv4(ip[:lenIPv4]))
	return true
}

// plausible reports whether the next packet of a flow may have an identification, and remembers it.
func (x *identifications) plausible(key uint64, id uint16) bool {
	f := &x.flows[key*0x9e3779b97f4a7c15>>54]
	if f.key != key || f.wide == 0 {
		*f = identFlow{key: key, time: x.now, last: id, wide: identAhead}
		return true
	}
	limit := int64(f.wide) + identRate*max(x.now-f.time, 0)
	ahead, behind := int64(id-f.last), int64(f.last-id)
	switch {
	case behind <= identBehind:
	case id < MaxRunIDs: // it says nothing about the other packets
		return true
	case ahead <= limit:
		f.last = id
	default:
		f.wide = min(f.wide*identWiden, identAll)
		return false
	}
	f.time, f.wide = x.now, max(f.wide/2, identAhead)
	return true
}

// factor returns x^(-8*n).
func (x *identifications) factor(n int) uint32 {
	f := &x.factors[n/4%identFactor] // packets have a multiple of four bytes
	if f.n != n {
		// x has the order 2^32-1.
		f.n, f.factor = n, powCRC(1<<32-1-8*uint64(n+2))
	}
	return f.factor
}

// MaxRunIDs is the largest number of packets of a run for RunIDs.
const MaxRunIDs = 64

// RunIDs changes the ICRC of packets that the kernel sends with another identification, such as
// those that it cuts from a run: packet i gets the identification i. The zero value is ready to
// use. It must not be used by two goroutines at a time.
type RunIDs struct {
	ids, ports [runTables]runTable // of identifications, and of UDP source ports
}

const runTables = 16

// runTable has the changes of the ICRC of packets of one length, by the bits of a header field of
// 16 bits that change.
type runTable struct {
	length int
	low    [64]uint32 // bits 0 to 5
	mid    [32]uint32 // bits 6 to 10
	high   [32]uint32 // bits 11 to 15
}

// fill fills the table for packets of a length in which n bytes follow the field before the BTH.
func (t *runTable) fill(length, n int) {
	t.length = length
	factor := powCRC(8 * uint64(n+length-bth.ICRCLen+2))
	change := func(bit int) uint32 {
		return mulCRC(uint32(bits.ReverseBytes16(uint16(bit))), factor)
	}
	for i := range t.low {
		t.low[i] = change(i)
	}
	for i := range t.mid {
		t.mid[i], t.high[i] = change(i<<6), change(i<<11)
	}
}

// apply changes the ICRC of a packet.
func (t *runTable) apply(packet []byte, bits uint16) {
	change := t.low[bits%64]
	if bits >= 64 {
		change ^= t.mid[bits>>6%32] ^ t.high[bits>>11]
	}
	at := packet[len(packet)-bth.ICRCLen:]
	binary.LittleEndian.PutUint32(at, binary.LittleEndian.Uint32(at)^change)
}

// Set changes the ICRC of an IPv4 packet, which was computed for identification 0, to that for
// identification i, less than MaxRunIDs. packet extends from the BTH to the ICRC.
func (r *RunIDs) Set(packet []byte, i int) { r.Change(packet, 0, uint16(i)) }

// Change changes the ICRC of an IPv4 packet, which was computed for the identification from, to
// that for the identification to. packet extends from the BTH to the ICRC.
func (r *RunIDs) Change(packet []byte, from, to uint16) {
	t := &r.ids[len(packet)/4%runTables]
	if t.length != len(packet) {
		t.fill(len(packet), lenIPv4-lenBeforeID+lenUDP)
	}
	t.apply(packet, from^to)
}

// ChangePort does the same for the UDP source port, also of IPv6 packets.
func (r *RunIDs) ChangePort(packet []byte, from, to uint16) {
	t := &r.ports[len(packet)/4%runTables]
	if t.length != len(packet) {
		t.fill(len(packet), lenUDP-2)
	}
	t.apply(packet, from^to)
}

// mulCRC multiplies two polynomials modulo that of CRC-32. Bit 31 is the coefficient of x^0.
func mulCRC(a, b uint32) (product uint32) {
	for ; a != 0; a <<= 1 {
		product ^= b & uint32(int32(a)>>31)
		b = b>>1 ^ crc32.IEEE&-(b&1)
	}
	return product
}

// powCRC returns x^n.
func powCRC(n uint64) uint32 {
	result, square := uint32(1)<<31, uint32(1)<<30
	for ; n > 0; n >>= 1 {
		if n&1 != 0 {
			result = mulCRC(result, square)
		}
		square = mulCRC(square, square)
	}
	return result
}
