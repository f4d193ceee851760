package frame

import (
	"encoding/binary"

	"github.com/gorxe/gorxe/bth"
)

// flow remembers how the headers of a good frame began. Mostly the next frame comes from the same peer, and its headers are the same bytes
// but for lengths, identification, checksums (as those that RFC 1144, 3.2, leaves out) and UDP source port, which is each QP's own: then what
// was found right in them is right again, and what was read from them is known. It serves IPv4 without a VLAN tag, which nearly all of the
// traffic is; others go the long way.
type flow struct {
	words    [flowWords]uint64 // of the frame, what differs from packet to packet as zeros
	src, dst bth.GID
	srcMAC   MAC
	class    uint8
	hops     uint8
	known    bool
}

const (
	// flowWords words of 8 bytes are compared, all up to UDP's checksum.
	flowWords = 5
	flowLen   = lenEthernet + lenIPv4 + lenUDP
)

// What is compared of the words of a frame, in memory's order: all but bytes 16 to 19 (IPv4's total length and identification), 24 and 25 (its
// checksum), 34 and 35 (UDP's source port), 38 and 39 (its length).
const (
	flowMask2 = 0xffffffff_00000000
	flowMask3 = 0xffffffff_ffff0000
	flowMask4 = 0x0000ffff_0000ffff
)

// has tells whether b belongs to the flow.
func (f *flow) has(b []byte) bool {
	if len(b) < flowLen || !f.known {
		return false
	}
	le := binary.LittleEndian
	return (le.Uint64(b[0:])^f.words[0])|
		(le.Uint64(b[8:])^f.words[1])|
		(le.Uint64(b[16:])&flowMask2^f.words[2])|
		(le.Uint64(b[24:])&flowMask3^f.words[3])|
		(le.Uint64(b[32:])&flowMask4^f.words[4]) == 0
}

// fill sets in p what all frames of the flow have in common.
func (f *flow) fill(p *bth.Packet) {
	p.Src, p.Dst, p.SrcMAC = f.src, f.dst, f.srcMAC
	p.TrafficClass, p.HopLimit = f.class, f.hops
	p.VLAN, p.HasVLAN = 0, false
}

// learn takes the frame that p was filled from, and which was right.
func (f *flow) learn(b []byte, p *bth.Packet) {
	le := binary.LittleEndian
	f.words = [flowWords]uint64{le.Uint64(b[0:]), le.Uint64(b[8:]), le.Uint64(b[16:]) & flowMask2, le.Uint64(b[24:]) & flowMask3, le.Uint64(b[32:]) & flowMask4}
	f.src, f.dst, f.srcMAC = p.Src, p.Dst, p.SrcMAC
	f.class, f.hops = p.TrafficClass, p.HopLimit
	f.known = true
}
