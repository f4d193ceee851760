package frame

import (
	"encoding/binary"
	"hash/crc32"
)

// The ICRC (IBA 7.8.1 and annex A17.3.3) is the CRC-32 of Ethernet over eight bytes 0xff and the
// packet from the IP header to the pad. Every field that may change in transit counts as ones. The
// ICRC is sent with the least significant byte first.
//
// Processors with AVX-512 compute it with crcAVX512 (fold.go), which masks the fields itself. On
// others, hash/crc32 computes it from a masked copy of the packet's start and from the rest.
// hash/crc32 is fast only for multiples of 16 bytes, at least 64 at a time. So zeros precede the
// packet to fill it up to a multiple of 64; they do not change a CRC register that starts at zero.
// The effect of the eight bytes 0xff is added to the first four bytes of the packet instead.

const (
	lenIPv4  = 20
	lenIPv6  = 40
	lenUDP   = 8
	protoUDP = 17

	// crcBlock is the size of the smallest piece that hash/crc32 processes with its fastest code,
	// and headLen the length of the zeros and the masked copy together. It is long enough for the
	// variant fields of both IP versions after crcBlock-1 zeros.
	crcBlock = 64
	headLen  = 2 * crcBlock

	// seedRegister is the CRC register after the eight bytes 0xff.
	seedRegister uint32 = 0xdebb20e3
	// zeroRegister makes crc32.Update, which inverts its argument, start with register zero.
	zeroRegister uint32 = 0xffffffff
)

// scratch holds crcBlock zeros and the masked copy of a packet's start. It is part of the Decoder
// and the Encoder, because a local array passed to hash/crc32 would escape.
type scratch [crcBlock + headLen]byte

// prepare is the first half of the computation of an ICRC, sum the second. ip extends from the IP
// header to the end of the pad and has at least UDP header and BTH. The IP header has ipLen bytes
// (20 or 40). Variant fields need not be final.
//
// If the caller has other work to do in between, the CRC need not wait until the stores of prepare
// have reached the cache.
func (s *scratch) prepare(ip []byte, ipLen int) {
	if foldConstants == nil {
		copy(s[crcBlock:], ip)
		maskHead(s[crcBlock:], ipLen)
	}
}

// sum returns the ICRC of the prepared packet.
func (s *scratch) sum(ip []byte, ipLen int) uint32 {
	if foldConstants != nil {
		return crcAVX512(foldConstants, icrcMask(ipLen), &ip[0], len(ip), nil, 0)
	}
	zeros := -len(ip) & (crcBlock - 1)
	n := min(len(ip), headLen-zeros)
	crc := crc32.Update(zeroRegister, crc32.IEEETable, s[crcBlock-zeros:crcBlock+n])
	if n < len(ip) {
		crc = crc32.Update(crc, crc32.IEEETable, ip[n:])
	}
	return crc
}

// fill copies src to ip[at:] and returns the ICRC of the packet. With AVX-512, one pass copies and
// adds all complete steps of foldStep bytes after the first step, which contains the headers.
func (s *scratch) fill(ip []byte, ipLen, at int, src []byte) uint32 {
	lead := foldStep - at
	blocks := (len(src) - lead) / foldStep
	if foldConstants == nil || lead < 0 || blocks <= 0 {
		copy(ip[at:], src)
		s.prepare(ip, ipLen)
		return s.sum(ip, ipLen)
	}
	copy(ip[at:], src[:lead])
	done := lead + blocks*foldStep
	copy(ip[at+done:], src[done:])
	return crcAVX512(foldConstants, icrcMask(ipLen), &ip[0], len(ip), &src[lead], blocks)
}

// maskHead sets the variant fields of a packet's start to ones and adds seedRegister.
func maskHead(h []byte, ipLen int) {
	if ipLen == lenIPv4 {
		h[1] = 0xff               // type of service
		h[8] = 0xff               // time to live
		h[10], h[11] = 0xff, 0xff // header checksum
	} else {
		h[0] |= 0x0f // traffic class, flow label
		h[1], h[2], h[3] = 0xff, 0xff, 0xff
		h[7] = 0xff // hop limit
	}
	h[ipLen+6], h[ipLen+7] = 0xff, 0xff // UDP checksum
	h[ipLen+lenUDP+4] = 0xff            // BTH: FECN, BECN, reserved
	binary.LittleEndian.PutUint32(h, binary.LittleEndian.Uint32(h)^seedRegister)
}

// ICRC returns the invariant CRC of a packet, for tools. ip extends from the IP header to the end
// of the pad. ok is false if ip is too short. ICRC allocates.
func ICRC(ip []byte) (crc uint32, ok bool) {
	ipLen := lenIPv4
	if len(ip) > 0 && ip[0]>>4 == 6 {
		ipLen = lenIPv6
	}
	if len(ip) < ipLen+lenUDP+12 {
		return 0, false
	}
	s := new(scratch)
	s.prepare(ip, ipLen)
	return s.sum(ip, ipLen), true
}
