package frame

import (
	"encoding/binary"
	"errors"

	"github.com/gorxe/gorxe/bth"
)

const (
	etherTypeIPv4 = 0x0800
	etherTypeIPv6 = 0x86dd
	etherTypeVLAN = 0x8100
	etherTypeQinQ = 0x88a8

	lenEthernet = 14
	lenVLAN     = 4
	minPacket   = lenUDP + bth.HeaderLen + bth.ICRCLen // bytes after the IP header

	protoHopByHop = 0
	protoRouting  = 43
	protoFragment = 44
	protoDestOpts = 60
)

// Decoder decodes frames. The zero value is ready to use. A Decoder must not be used by two
// goroutines at a time. It should be part of a struct on the heap, because its scratch space
// escapes.
type Decoder struct {
	scratch scratch
	idents  *identifications // after RecoverIDs
}

// Decode checks an Ethernet frame and fills in p with views of b. It ignores Ethernet padding at
// the end. With ReasonOK every check passed, including the ICRC. With ReasonICRC p is filled in as
// far as possible, for programs that display packets; the content may be corrupted. With any other
// reason the fields of p are unspecified, but its accessors do not panic.
func (d *Decoder) Decode(b []byte, p *bth.Packet) Reason {
	if len(b) < lenEthernet+lenVLAN {
		return ReasonShort
	}
	copy(p.SrcMAC[:], b[6:12])
	etherType, ip := binary.BigEndian.Uint16(b[12:14]), b[lenEthernet:]
	p.VLAN, p.HasVLAN = 0, false
	if etherType == etherTypeVLAN {
		p.VLAN, p.HasVLAN = binary.BigEndian.Uint16(ip), true
		etherType, ip = binary.BigEndian.Uint16(ip[2:4]), ip[lenVLAN:]
	}
	var reason Reason
	switch etherType {
	case etherTypeIPv4:
		ip, reason = decodeIPv4(ip, p)
	case etherTypeIPv6:
		ip, reason = decodeIPv6(ip, p)
	case etherTypeVLAN, etherTypeQinQ:
		return ReasonVLAN
	default:
		return ReasonNotRoCE
	}
	if reason != ReasonOK {
		return reason
	}
	return d.transport(ip, p)
}

// decodeIPv4 checks the IPv4 header, sets the addresses of p, and returns the IP packet without
// padding.
func decodeIPv4(ip []byte, p *bth.Packet) ([]byte, Reason) {
	if len(ip) < lenIPv4+lenUDP {
		return nil, ReasonShort
	}
	switch {
	case ip[0] != 4<<4|lenIPv4/4:
		if ip[0]>>4 == 4 && ip[0]&15 > lenIPv4/4 && ip[9] == protoUDP {
			return nil, ReasonIPOptions
		}
		return nil, ReasonNotRoCE
	case ip[9] != protoUDP:
		return nil, ReasonNotRoCE
	case binary.BigEndian.Uint16(ip[6:8])&0x3fff != 0: // more fragments, or a fragment offset
		return nil, ReasonFragment
	case binary.BigEndian.Uint16(ip[lenIPv4+2:]) != bth.Port:
		return nil, ReasonNotRoCE
	}
	p.TrafficClass, p.HopLimit = ip[1], ip[8]
	p.Src.SetIPv4(ip[12:16])
	p.Dst.SetIPv4(ip[16:20])
	if sumIPv4(ip) != 0xffff {
		return nil, ReasonIPChecksum
	}
	n := int(binary.BigEndian.Uint16(ip[2:4]))
	if n > len(ip) {
		return nil, ReasonShort
	}
	if n < lenIPv4+minPacket {
		return nil, ReasonTruncated
	}
	p.NetHeader = ip[:lenIPv4:lenIPv4]
	return ip[:n], ReasonOK
}

// decodeIPv6 is decodeIPv4 for IPv6.
func decodeIPv6(ip []byte, p *bth.Packet) ([]byte, Reason) {
	if len(ip) < lenIPv6+lenUDP {
		return nil, ReasonShort
	}
	if ip[0]>>4 != 6 {
		return nil, ReasonNotRoCE
	}
	switch ip[6] {
	case protoUDP:
	case protoFragment:
		return nil, ReasonFragment
	case protoHopByHop, protoRouting, protoDestOpts:
		return nil, ReasonIPOptions
	default:
		return nil, ReasonNotRoCE
	}
	if binary.BigEndian.Uint16(ip[lenIPv6+2:]) != bth.Port {
		return nil, ReasonNotRoCE
	}
	n := lenIPv6 + int(binary.BigEndian.Uint16(ip[4:6]))
	if n > len(ip) {
		return nil, ReasonShort
	}
	if n < lenIPv6+minPacket {
		return nil, ReasonTruncated
	}
	p.TrafficClass, p.HopLimit = ip[0]<<4|ip[1]>>4, ip[7]
	p.Src, p.Dst = bth.GID(ip[8:24]), bth.GID(ip[24:40])
	// The GID ::ffff:a.b.c.d represents an IPv4 address. If it were accepted in an IPv6 header, an
	// IPv6 sender could impersonate an IPv4 sender (RFC 4038, section 4.2).
	if p.Src.IsIPv4() || p.Dst.IsIPv4() {
		return nil, ReasonAddress
	}
	p.NetHeader = ip[:lenIPv6:lenIPv6]
	return ip[:n], ReasonOK
}

// transport checks UDP, ICRC and BTH. ip has no padding and at least minPacket bytes after the IP
// header.
func (d *Decoder) transport(ip []byte, p *bth.Packet) Reason {
	ipLen := len(p.NetHeader)
	udp := ip[ipLen:]
	if int(binary.BigEndian.Uint16(udp[4:6])) != len(udp) {
		return ReasonUDPLength
	}
	if binary.BigEndian.Uint16(udp[6:8]) != 0 && !udpChecksumOK(addrsOf(p.NetHeader), udp) {
		return ReasonUDPChecksum
	}
	end := len(ip) - bth.ICRCLen
	d.scratch.prepare(ip[:end], ipLen)
	p.SrcPort = binary.BigEndian.Uint16(udp)
	err := p.Parse(ip[ipLen+lenUDP : end : end])
	// A packet with a wrong ICRC is dropped for that reason, whatever its opcode (IBA 9.6.1).
	if !d.icrcOK(ip, ipLen) {
		return ReasonICRC
	}
	if err != nil {
		return parseReason(err)
	}
	return ReasonOK
}

// icrcOK reports whether the ICRC of the prepared packet is correct, perhaps with another
// identification; see RecoverIDs.
func (d *Decoder) icrcOK(ip []byte, ipLen int) bool {
	end := len(ip) - bth.ICRCLen
	crc := d.scratch.sum(ip[:end], ipLen)
	return crc == binary.LittleEndian.Uint32(ip[end:]) || d.recovers(ip, crc)
}

// CheckICRC reports whether the ICRC of a frame with valid headers is correct. netLen bytes precede
// the BTH. The frame ends with the ICRC.
func (d *Decoder) CheckICRC(f []byte, netLen int) bool {
	ip, ipLen := ipPacket(f, netLen)
	d.scratch.prepare(ip[:len(ip)-bth.ICRCLen], ipLen)
	return d.icrcOK(ip, ipLen)
}

// NextID increments the identification in the headers before a BTH, if they are of IPv4. It does
// not change the checksum, which the ICRC does not cover.
func NextID(h []byte) {
	if ip, ipLen := ipPacket(h, len(h)); ipLen == lenIPv4 {
		binary.BigEndian.PutUint16(ip[4:], binary.BigEndian.Uint16(ip[4:])+1)
	}
}

func addrsOf(ipHeader []byte) []byte {
	if len(ipHeader) == lenIPv4 {
		return ipHeader[12:20]
	}
	return ipHeader[8:40]
}

func parseReason(err error) Reason {
	switch {
	case errors.Is(err, bth.ErrVersion):
		return ReasonVersion
	case errors.Is(err, bth.ErrOpcode):
		return ReasonOpcode
	case errors.Is(err, bth.ErrPad):
		return ReasonPad
	}
	return ReasonTruncated
}

// PeekBTH returns the bytes after the UDP header, including the ICRC, of a frame that looks like
// RoCEv2, or nil. It checks only lengths and the EtherType. Use it to guess the connection of a
// frame before Decode has checked it. A non-nil result has at least 16 bytes.
func PeekBTH(b []byte) []byte {
	if len(b) < lenEthernet+lenVLAN+lenIPv4+minPacket {
		return nil
	}
	at := lenEthernet
	etherType := binary.BigEndian.Uint16(b[12:14])
	if etherType == etherTypeVLAN {
		etherType = binary.BigEndian.Uint16(b[16:18])
		at += lenVLAN
	}
	switch etherType {
	case etherTypeIPv4:
		at += lenIPv4 + lenUDP
	case etherTypeIPv6:
		at += lenIPv6 + lenUDP
	default:
		return nil
	}
	if len(b) < at+bth.HeaderLen+bth.ICRCLen {
		return nil
	}
	return b[at:]
}
