package frame

import (
	"encoding/binary"
	"hash/crc32"
)

// The ICRC (IBA 7.8.1 and annex A17.3.3) is Ethernet's CRC-32 over the packet from
// the IP header to the pad, begun as if eight bytes 0xff stood in front, with
// every field that may change on the way taken as ones. It is sent least
// significant byte first.
//
// Speed comes from two facts. The processor's code for CRC-32 (hash/crc32 on
// amd64) takes its fast way for pieces of 64 bytes or more and walks through what
// a multiple of 16 leaves byte by byte; and zeros in front of a message do not
// change the CRC's register when it starts at zero. So the start value is folded
// into the first four bytes, zeros fill up to a multiple of 16 in front, and no
// byte is ever walked through alone.

const (
	// seedRegister is the CRC register after the eight bytes 0xff, from the usual start
	// value of ones.
	seedRegister uint32 = 0xdebb20e3
	// zeroRegister makes crc32.Update, which inverts on entry, start with register 0.
	zeroRegister uint32 = 0xffffffff

	fastBlock = 16 // the fast code's step
	fastMin   = 64 // below this it is not used

	// maxWhole is the longest packet that is copied as a whole rather than taken in two
	// runs: a copy is cheaper than the start of a second run.
	maxWhole = 384

	headIPv4 = 64 // bytes of the first run: zeros, then at least the 33 up to the masked BTH byte
	headIPv6 = 80 // likewise, at least 53

	lenIPv4  = 20
	lenIPv6  = 40
	lenUDP   = 8
	protoUDP = 17
)

// scratch is where the masked start of a packet is put together. It lives in the
// Decoder or Encoder, since a stack array given to hash/crc32 would escape.
//
// The first fastMin bytes stay zero for ever.
type scratch struct {
	b [fastMin + maxWhole]byte
}

// icrc returns the ICRC of an IP packet without its last 4 bytes. ip has at least
// an IP header of ipLen bytes (20 or 40), UDP header and BTH.
func (s *scratch) icrc(ip []byte, ipLen int) uint32 {
	zeros := -len(ip) & (fastBlock - 1)
	if len(ip) <= maxWhole {
		if len(ip) < fastMin {
			zeros = fastMin - len(ip)
		}
		copy(s.b[fastMin:], ip)
		s.mask(ipLen)
		return crc32.Update(zeroRegister, crc32.IEEETable, s.b[fastMin-zeros:fastMin+len(ip)])
	}
	head := headIPv4 - zeros
	if ipLen == lenIPv6 {
		head = headIPv6 - zeros
	}
	copy(s.b[fastMin:fastMin+headIPv6], ip)
	s.mask(ipLen)
	crc := crc32.Update(zeroRegister, crc32.IEEETable, s.b[fastMin-zeros:fastMin+head])
	return crc32.Update(crc, crc32.IEEETable, ip[head:])
}

// mask sets the variant fields of the packet in the scratch to ones and folds the
// start value in.
func (s *scratch) mask(ipLen int) {
	h := s.b[fastMin : fastMin+lenIPv6+lenUDP+8]
	if ipLen == lenIPv4 {
		h[1] = 0xff                // type of service
		h[8] = 0xff                // time to live
		h[10], h[11] = 0xff, 0xff  // header checksum
		h[26], h[27] = 0xff, 0xff  // UDP checksum
		h[lenIPv4+lenUDP+4] = 0xff // BTH: FECN, BECN, reserved
	} else {
		h[0] |= 0x0f                        // traffic class,
		h[1], h[2], h[3] = 0xff, 0xff, 0xff // and flow label
		h[7] = 0xff                         // hop limit
		h[lenIPv6+6], h[lenIPv6+7] = 0xff, 0xff
		h[lenIPv6+lenUDP+4] = 0xff
	}
	binary.LittleEndian.PutUint32(h, binary.LittleEndian.Uint32(h)^seedRegister)
}

// ICRC returns the invariant CRC of an IP packet from its IP header to the end of
// the pad, for tools; it allocates. ok is false if the packet is too short to have
// one.
func ICRC(ip []byte) (crc uint32, ok bool) {
	ipLen := lenIPv4
	if len(ip) > 0 && ip[0]>>4 == 6 {
		ipLen = lenIPv6
	}
	if len(ip) < ipLen+lenUDP+12 {
		return 0, false
	}
	return new(scratch).icrc(ip, ipLen), true
}
