package frame

import (
	"encoding/binary"

	"github.com/gorxe/gorxe/bth"
)

// flow caches the header bytes of a valid frame. The next frame from the same peer usually has the
// same bytes, except for lengths, identification, checksums (the fields that RFC 1144, section 3.2,
// leaves out) and the UDP source port, which depends on the QP. If all other bytes are equal, the
// Decoder need not check and parse them again. Only IPv4 frames without a VLAN tag have flows.
type flow struct {
	words    [flowWords]uint64 // of the frame, with varying fields set to zero
	src, dst bth.GID
	srcMAC   bth.MAC
	class    uint8
	hops     uint8
	known    bool
}

const (
	// numFlows is the number of cached flows. The low bits of the IPv4 source address select the
	// entry.
	numFlows = 16
	flowKey  = lenEthernet + 15
	// flowWords is the number of 8-byte words that are compared, up to and including the UDP
	// checksum.
	flowWords = 5
	flowLen   = lenEthernet + lenIPv4 + lenUDP
)

// Masks of the words of a frame in little-endian order. They leave out bytes 16 to 19 (IPv4 total
// length and identification), 24 and 25 (IPv4 checksum), 34 and 35 (UDP source port), and 38 and 39
// (UDP length).
const (
	flowMask2 = 0xffffffff_00000000
	flowMask3 = 0xffffffff_ffff0000
	flowMask4 = 0x0000ffff_0000ffff
)

// flows is the cache of a Decoder. Of the peers that share an entry, it holds the last one.
type flows [numFlows]flow

// find returns the flow that frame b belongs to, or nil.
func (l *flows) find(b []byte) *flow {
	if len(b) < flowLen {
		return nil
	}
	if f := &l[b[flowKey]%numFlows]; f.has(b) {
		return f
	}
	return nil
}

// learn caches the header bytes of the valid frame b, which was decoded to p.
func (l *flows) learn(b []byte, p *bth.Packet) { l[b[flowKey]%numFlows].set(b, p) }

// has reports whether b belongs to the flow. b has at least flowLen bytes.
func (f *flow) has(b []byte) bool {
	le := binary.LittleEndian
	return f.known && (le.Uint64(b[0:])^f.words[0])|
		(le.Uint64(b[8:])^f.words[1])|
		(le.Uint64(b[16:])&flowMask2^f.words[2])|
		(le.Uint64(b[24:])&flowMask3^f.words[3])|
		(le.Uint64(b[32:])&flowMask4^f.words[4]) == 0
}

// fill sets the fields of p that all frames of the flow share.
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
