package frame

import (
	"encoding/binary"

	"github.com/gorxe/gorxe/bth"
)

// flow remembers how the headers of a good frame began. Mostly the peer's next frame has the same headers, byte for byte,
// but for lengths, identification, checksums (as those that RFC 1144, 3.2, leaves out) and UDP source port, which is each QP's own: then what
// was found right in them is right again, and what was read from them is known. It serves IPv4 without a VLAN tag, which nearly all of the
// traffic is; others go the long way.
type flow struct {
	words    [flowWords]uint64 // of the frame, what differs from packet to packet as zeros
	src, dst bth.GID
	srcMAC   bth.MAC
	class    uint8
	hops     uint8
	known    bool
}

const (
	// numFlows is how many are remembered, one for each value of the last bits of IPv4's source address.
	numFlows = 16
	flowKey  = lenEthernet + 15
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

// flows are those that a Decoder knows: of each group of peers the one that was last heard of.
type flows [numFlows]flow

// find returns the flow that b belongs to; nil: none that is known.
func (l *flows) find(b []byte) *flow {
	if len(b) < flowLen {
		return nil
	}
	if f := &l[b[flowKey]%numFlows]; f.has(b) {
		return f
	}
	return nil
}

// learn takes the frame that p was filled from, and which was right.
func (l *flows) learn(b []byte, p *bth.Packet) { l[b[flowKey]%numFlows].set(b, p) }

// has tells whether b belongs to the flow. b has flowLen bytes.
func (f *flow) has(b []byte) bool {
	le := binary.LittleEndian
	return f.known && (le.Uint64(b[0:])^f.words[0])|
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

func (f *flow) set(b []byte, p *bth.Packet) {
	le := binary.LittleEndian
	f.words = [flowWords]uint64{le.Uint64(b[0:]), le.Uint64(b[8:]), le.Uint64(b[16:]) & flowMask2, le.Uint64(b[24:]) & flowMask3, le.Uint64(b[32:]) & flowMask4}
	f.src, f.dst, f.srcMAC = p.Src, p.Dst, p.SrcMAC
	f.class, f.hops = p.TrafficClass, p.HopLimit
	f.known = true
}
