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
// Where the processor can, crcAVX512 (fold.go) takes the whole packet in one run, masks included. What follows here is
// for the others, and for their sake the packet's start is put together in a scratch.
//
// Speed comes from two facts there. The processor's code for CRC-32 (hash/crc32 on
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

	fastBlock = 16   // the fast code's smallest step
	fastMin   = 64   // below this it is not used; above, its best step
	wideMin   = 1024 // from here on it uses wider registers, where there are some

	// maxWhole is the longest packet that is copied as a whole rather than taken in two
	// runs: a copy is cheaper than a second run. It covers full packets of path MTU 1024.
	maxWhole = 1152
	// minWiden: from this length on, zeros up to wideMin cost less than they gain.
	minWiden = 640

	zeroRoom = wideMin - minWiden // zeros in front of the packet; more than fastMin

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
// The first zeroRoom bytes stay zero for ever.
type scratch struct {
	b [zeroRoom + maxWhole]byte
}

// prepare is the first half of an ICRC, sum the second.
// ip reaches from the IP header, of ipLen bytes (20 or 40), to the end of the pad
// and holds at least UDP header and BTH. Fields that mask overwrites need not be
// final yet.
//
// They are two because the CRC's wide loads have to wait until the
// narrow stores of copyHead have reached the cache: work between the two calls is free.
func (s *scratch) prepare(ip []byte, ipLen int) {
	if foldConstants == nil {
		s.copyHead(ip, ipLen)
	}
}

// sum returns the ICRC of the packet that was prepared.
func (s *scratch) sum(ip []byte, ipLen int) uint32 {
	if foldConstants != nil {
		return crcAVX512(foldConstants, icrcMask(ipLen), &ip[0], len(ip), nil, 0)
	}
	return s.sumRuns(ip, ipLen)
}

// fill copies src to ip[at:] and returns the ICRC of the packet, which is whole then and need not have been prepared.
//
// Where the processor can, copying and summing 4 KiB at the same time takes 170 ns where one after the other take 198.
func (s *scratch) fill(ip []byte, ipLen, at int, src []byte) uint32 {
	lead := foldStep - at // the first block has the headers
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

// copyHead copies the start of an IP packet, or all of a short one, and masks it. It stays a call, out of the way of those who need none.
//
//go:noinline
func (s *scratch) copyHead(ip []byte, ipLen int) {
	n := len(ip)
	if n > maxWhole {
		n = headIPv6
	}
	copy(s.b[zeroRoom:], ip[:n])
	s.mask(ip, ipLen)
}

// sumRuns returns the ICRC of the packet whose start was put, in one or two runs.
func (s *scratch) sumRuns(ip []byte, ipLen int) uint32 {
	if len(ip) <= maxWhole {
		zeros := -len(ip) & (fastMin - 1)
		if len(ip) >= minWiden && len(ip) < wideMin {
			zeros = wideMin - len(ip)
		}
		return crc32.Update(zeroRegister, crc32.IEEETable, s.b[zeroRoom-zeros:zeroRoom+len(ip)])
	}
	zeros := -len(ip) & (fastBlock - 1)
	head := headIPv4 - zeros
	if ipLen == lenIPv6 {
		head = headIPv6 - zeros
	}
	crc := crc32.Update(zeroRegister, crc32.IEEETable, s.b[zeroRoom-zeros:zeroRoom+head])
	return crc32.Update(crc, crc32.IEEETable, ip[head:])
}

// mask sets the variant fields of the packet in the scratch to ones and folds the
// start value in. ip is the packet itself: its first word is read from there,
// because reading one's own narrow stores back wide is slow.
func (s *scratch) mask(ip []byte, ipLen int) {
	first := binary.LittleEndian.Uint32(ip)
	h := s.b[zeroRoom : zeroRoom+lenIPv6+lenUDP+8]
	if ipLen == lenIPv4 {
		first |= 0xff << 8        // type of service
		h[8] = 0xff               // time to live
		h[10], h[11] = 0xff, 0xff // header checksum
	} else {
		first |= 0xffffff0f // traffic class, flow label
		h[7] = 0xff         // hop limit
	}
	binary.LittleEndian.PutUint32(h, first^seedRegister)
	h[ipLen+6], h[ipLen+7] = 0xff, 0xff // UDP checksum
	h[ipLen+lenUDP+4] = 0xff            // BTH: FECN, BECN, reserved
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
	s := new(scratch)
	s.prepare(ip, ipLen)
	return s.sum(ip, ipLen), true
}
