package frame

import (
	"encoding/binary"
	"fmt"

	"github.com/gorxe/gorxe/bth"
)

// Address holds the values of the headers before the BTH.
type Address struct {
	SrcMAC, DstMAC bth.MAC
	VLAN           uint16 // tag control information as in bth.Packet; 0 = untagged
	Src, Dst       bth.GID
	SrcPort        uint16 // UDP source port; see SourcePort
	TrafficClass   uint8  // IPv4 TOS or IPv6 traffic class
	HopLimit       uint8
	PCP            uint8  // 1 to 7: replaces the priority in VLAN, if there is a tag
	FlowLabel      uint32 // 20 bits, IPv6 only
}

const (
	ipv4DontFragment = 0x4000
	flowLabelMask    = 1<<20 - 1
	pcpShift         = 13 // of the priority in the tag control information
)

// PutHeaders writes the headers from Ethernet to UDP as a template for Encoder.Finish and returns
// their length: 42 bytes for IPv4, 62 bytes for IPv6, and 4 bytes more with a VLAN tag. Lengths,
// identification and UDP checksum are zero. The IPv4 checksum field holds the sum of the template's
// header, from which Finish continues.
//
// PutHeaders panics if b is too short (bth.MaxNetHeader bytes always suffice) or if one GID is IPv4
// and the other is IPv6.
func PutHeaders(b []byte, a *Address) int {
	if a.Src.IsIPv4() != a.Dst.IsIPv4() {
		panic(fmt.Sprintf("frame: source GID %v and destination GID %v are of different IP versions",
			a.Src, a.Dst))
	}
	copy(b[0:6], a.DstMAC[:])
	copy(b[6:12], a.SrcMAC[:])
	n := 12
	if a.VLAN != 0 {
		binary.BigEndian.PutUint16(b[n:], etherTypeVLAN)
		binary.BigEndian.PutUint16(b[n+2:], a.tag())
		n += lenVLAN
	}
	if a.Src.IsIPv4() {
		binary.BigEndian.PutUint16(b[n:], etherTypeIPv4)
		n += 2
		n += putIPv4(b[n:], a)
	} else {
		binary.BigEndian.PutUint16(b[n:], etherTypeIPv6)
		n += 2
		n += putIPv6(b[n:], a)
	}
	udp := b[n : n+lenUDP]
	binary.BigEndian.PutUint16(udp[0:], a.SrcPort)
	binary.BigEndian.PutUint16(udp[2:], bth.Port)
	binary.BigEndian.PutUint32(udp[4:], 0)
	return n + lenUDP
}

// tag returns the tag control information of the VLAN tag.
func (a *Address) tag() uint16 {
	if a.PCP == 0 {
		return a.VLAN
	}
	return a.VLAN&(1<<pcpShift-1) | uint16(a.PCP)<<pcpShift
}

func putIPv4(b []byte, a *Address) int {
	b = b[:lenIPv4]
	clear(b)
	b[0] = 4<<4 | lenIPv4/4
	b[1] = a.TrafficClass
	binary.BigEndian.PutUint16(b[6:], ipv4DontFragment)
	b[8] = a.HopLimit
	b[9] = protoUDP
	copy(b[12:16], a.Src[12:])
	copy(b[16:20], a.Dst[12:])
	binary.BigEndian.PutUint16(b[10:], sumIPv4(b))
	return lenIPv4
}

func putIPv6(b []byte, a *Address) int {
	b = b[:lenIPv6]
	binary.BigEndian.PutUint32(b, 6<<28|uint32(a.TrafficClass)<<20|a.FlowLabel&flowLabelMask)
	binary.BigEndian.PutUint16(b[4:], 0)
	b[6] = protoUDP
	b[7] = a.HopLimit
	copy(b[8:24], a.Src[:])
	copy(b[24:40], a.Dst[:])
	return lenIPv6
}

// Encoder finishes frames. The zero value is ready to use. An Encoder must not be used by two
// goroutines at a time. It should be part of a struct on the heap, because its scratch space
// escapes.
type Encoder struct {
	// ID is the identification of the next IPv4 packet. The ICRC covers it.
	ID uint16
	// SourcePort, if it is not 0, is the UDP source port of all packets: that of a socket on which
	// they are sent. Their identification is then 0.
	SourcePort uint16

	scratch scratch
}

// Finish completes the frame f, which extends from the Ethernet header to the 4 bytes of the ICRC.
// Its first netLen bytes are a template from PutHeaders, followed by BTH, extension headers,
// payload and pad. Finish sets the IP length, identification and checksum, the UDP length and the
// ICRC. The UDP checksum stays 0, because the ICRC covers the same bytes.
//
// f must have at least netLen+16 bytes, and at most 65535 bytes from the IP header on. To finish
// the same frame again, write the template again first.
func (e *Encoder) Finish(f []byte, netLen int) {
	e.setICRC(e.finishHeaders(f, netLen))
}

// Reseal computes the ICRC of a finished frame again, with the identification and the UDP source
// port that its headers have.
func (e *Encoder) Reseal(f []byte, netLen int) {
	e.setICRC(ipPacket(f, netLen))
}

// setICRC computes the ICRC of a frame with complete headers. ip is the frame from the IP header
// on, whose length is ipLen.
func (e *Encoder) setICRC(ip []byte, ipLen int) {
	end := len(ip) - bth.ICRCLen
	e.scratch.prepare(ip[:end], ipLen)
	binary.LittleEndian.PutUint32(ip[end:], e.scratch.sum(ip[:end], ipLen))
}

// FinishWith is Finish for a frame that lacks the bytes src at f[at:], after the BTH and before the
// ICRC. It copies them while it computes the ICRC.
func (e *Encoder) FinishWith(f []byte, netLen, at int, src []byte) {
	ip, ipLen := e.finishHeaders(f, netLen)
	e.seal(f, ip, ipLen, at, src)
}

// seal is the part of FinishWith after the headers are complete. ip is the frame from the IP header
// on, whose length is ipLen.
func (e *Encoder) seal(f, ip []byte, ipLen, at int, src []byte) {
	end := len(ip) - bth.ICRCLen
	at -= len(f) - len(ip)
	binary.LittleEndian.PutUint32(ip[end:], e.scratch.fill(ip[:end], ipLen, at, src))
}

// FinishHeaders does what Finish does except for the ICRC. h has the headers of a frame of n bytes,
// netLen before the BTH.
func (e *Encoder) FinishHeaders(h []byte, netLen, n int) {
	ip, ipLen := ipPacket(h, netLen)
	e.finishIP(ip, ipLen, n-(len(h)-len(ip)))
}

// FinishPart is FinishWith for packet i of a run, which the kernel sends with the identification i
// over IPv4. FinishHeaders has finished the headers. Those of f are not valid afterwards: the
// checksum is that of another identification.
func (e *Encoder) FinishPart(f []byte, netLen, at int, src []byte, i int) {
	ip, ipLen := ipPacket(f, netLen)
	if ipLen == lenIPv4 {
		binary.BigEndian.PutUint16(ip[4:], uint16(i))
	}
	e.seal(f, ip, ipLen, at, src)
}

// finishHeaders does what Finish does except for the ICRC. It returns the frame from the IP header
// on and the length of that header.
func (e *Encoder) finishHeaders(f []byte, netLen int) (ip []byte, ipLen int) {
	ip, ipLen = ipPacket(f, netLen)
	e.finishIP(ip, ipLen, len(ip))
	return ip, ipLen
}

// ipPacket returns frame f from the IP header on, and the length of that header. netLen bytes
// precede the BTH.
func ipPacket(f []byte, netLen int) (ip []byte, ipLen int) {
	ipLen = lenIPv4
	if netLen >= lenEthernet+lenIPv6+lenUDP {
		ipLen = lenIPv6
	}
	return f[netLen-lenUDP-ipLen:], ipLen
}

// finishIP completes the IP and the UDP header of a packet of n bytes.
func (e *Encoder) finishIP(ip []byte, ipLen, n int) {
	binary.BigEndian.PutUint16(ip[ipLen+4:], uint16(n-ipLen))
	if e.SourcePort != 0 {
		binary.BigEndian.PutUint16(ip[ipLen:], e.SourcePort)
		e.ID = 0
	}
	if ipLen == lenIPv4 {
		finishIPv4(ip[:lenIPv4], n, e.ID)
		e.ID++
	} else {
		binary.BigEndian.PutUint16(ip[4:], uint16(n-ipLen))
	}
}

// finishIPv4 sets length, identification and checksum. The checksum field holds the sum of all
// other words, so only these two must be added (RFC 1071, section 2 (A)).
func finishIPv4(h []byte, n int, id uint16) {
	sum := uint32(binary.BigEndian.Uint16(h[10:])) + uint32(uint16(n)) + uint32(id)
	sum = sum>>16 + sum&0xffff
	sum += sum >> 16
	binary.BigEndian.PutUint16(h[2:], uint16(n))
	binary.BigEndian.PutUint16(h[4:], id)
	binary.BigEndian.PutUint16(h[10:], ^uint16(sum))
}

// SourcePort returns the UDP source port of a QP pair: 0xC000 plus 14 bits of a hash. Networks with
// several paths then distribute QPs over the paths, while each QP keeps to one path (IBA annex
// A17).
func SourcePort(a, b bth.QPN) uint16 {
	h := (uint64(a)<<24 | uint64(b)) * 0x9e3779b97f4a7c15
	return 0xc000 | uint16(h>>50)
}
