package frame

import (
	"encoding/binary"
	"fmt"

	"github.com/gorxe/gorxe/bth"
)

// Address is all that the headers in front of a BTH say.
type Address struct {
	SrcMAC, DstMAC bth.MAC
	VLAN           uint16 // tag control information: priority 3 bits, DEI 1, ID 12; 0 = untagged
	Src, Dst       bth.GID
	SrcPort        uint16 // UDP; see SourcePort
	TrafficClass   uint8  // IPv4 TOS or IPv6 traffic class
	HopLimit       uint8
	FlowLabel      uint32 // 20 bits, IPv6 only
}

const (
	ipv4DontFragment = 0x4000
	flowLabelMask    = 1<<20 - 1
)

// PutHeaders writes the headers from Ethernet to UDP as a template with zero
// lengths, IP ID and UDP checksum, and returns its length: 42 bytes for IPv4, 62 for
// IPv6, 4 more with a VLAN tag. In place of IPv4's checksum stands the sum of the
// template's IP header, which Finish goes on from. b must have room (bth.MaxNetHeader suffices), and
// both GIDs must be of one family: otherwise it panics, for these are its
// caller's own values.
func PutHeaders(b []byte, a *Address) int {
	if a.Src.IsIPv4() != a.Dst.IsIPv4() {
		panic(fmt.Sprintf("frame: GIDs of two families: %v, %v", a.Src, a.Dst))
	}
	copy(b[0:6], a.DstMAC[:])
	copy(b[6:12], a.SrcMAC[:])
	n := 12
	if a.VLAN != 0 {
		binary.BigEndian.PutUint16(b[n:], etherTypeVLAN)
		binary.BigEndian.PutUint16(b[n+2:], a.VLAN)
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

// Encoder finishes frames. It counts IPv4's identification and holds scratch space,
// so it is the property of one thread. The zero value is ready; keep it on the
// heap or in a longer-lived struct.
type Encoder struct {
	// ID is the identification of the next IPv4 packet; the ICRC covers it.
	ID      uint16
	scratch scratch
}

// Finish completes the frame f, which reaches from Ethernet to the 4 bytes of ICRC
// yet to be written. Its first netLen bytes are a template from PutHeaders, then
// come BTH to pad. Finish sets the IP length, ID and checksum, the UDP length
// (checksum 0: the ICRC covers more), and the ICRC.
//
// f must hold at least netLen + 16 bytes and at most 65535 from the IP header on. Who finishes a frame again puts the template back first.
func (e *Encoder) Finish(f []byte, netLen int) {
	ip, ipLen := e.finishHeaders(f, netLen)
	end := len(ip) - bth.ICRCLen
	e.scratch.prepare(ip[:end], ipLen)
	binary.LittleEndian.PutUint32(ip[end:], e.scratch.sum(ip[:end], ipLen))
}

// FinishWith is Finish for a frame that lacks some bytes: src, which belongs at f[at:], behind the BTH and in front of the ICRC. It is copied there
// and summed at the same time.
func (e *Encoder) FinishWith(f []byte, netLen, at int, src []byte) {
	ip, ipLen := e.finishHeaders(f, netLen)
	end := len(ip) - bth.ICRCLen
	at -= len(f) - len(ip)
	binary.LittleEndian.PutUint32(ip[end:], e.scratch.fill(ip[:end], ipLen, at, src))
}

// finishHeaders sets what Finish says but for the ICRC. It returns the frame from the IP header on, and that header's length.
func (e *Encoder) finishHeaders(f []byte, netLen int) (ip []byte, ipLen int) {
	ipLen = lenIPv4
	if netLen >= lenEthernet+lenIPv6+lenUDP {
		ipLen = lenIPv6
	}
	ip = f[netLen-lenUDP-ipLen:]
	udpLen := len(ip) - ipLen
	binary.BigEndian.PutUint16(ip[ipLen+4:], uint16(udpLen))
	if ipLen == lenIPv4 {
		finishIPv4(ip[:lenIPv4], len(ip), e.ID)
		e.ID++
	} else {
		binary.BigEndian.PutUint16(ip[4:], uint16(udpLen))
	}
	return ip, ipLen
}

// finishIPv4 sets length, identification and checksum. The sum of everything else is in the checksum's place already, so that nothing
// has to be added up anew for each packet (RFC 1071, 2: sums may be built in parts).
func finishIPv4(h []byte, n int, id uint16) {
	sum := uint32(binary.BigEndian.Uint16(h[10:])) + uint32(uint16(n)) + uint32(id)
	sum = sum>>16 + sum&0xffff
	sum += sum >> 16
	binary.BigEndian.PutUint16(h[2:], uint16(n))
	binary.BigEndian.PutUint16(h[4:], id)
	binary.BigEndian.PutUint16(h[10:], ^uint16(sum))
}

// SourcePort returns the UDP source port of a QP pair: 0xC000 and 14 bits of hash,
// so that networks with several paths spread QPs over them while each keeps to one
// (IBA annex A17).
func SourcePort(a, b bth.QPN) uint16 {
	h := (uint64(a)<<24 | uint64(b)) * 0x9e3779b97f4a7c15
	return 0xc000 | uint16(h>>50)
}
