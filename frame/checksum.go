package frame

import (
	"encoding/binary"
	"math/bits"
)

// sum16 returns the ones' complement sum of b as big-endian 16-bit words (RFC 1071). If the length
// is odd, it appends a zero byte. It adds 64-bit words with end-around carry, which gives the same
// sum modulo 2^16-1.
func sum16(b []byte) uint16 {
	var sum, carry uint64
	for len(b) >= 32 {
		sum, carry = bits.Add64(sum, binary.BigEndian.Uint64(b[0:8]), carry)
		sum, carry = bits.Add64(sum, binary.BigEndian.Uint64(b[8:16]), carry)
		sum, carry = bits.Add64(sum, binary.BigEndian.Uint64(b[16:24]), carry)
		sum, carry = bits.Add64(sum, binary.BigEndian.Uint64(b[24:32]), carry)
		b = b[32:]
	}
	for len(b) >= 8 {
		sum, carry = bits.Add64(sum, binary.BigEndian.Uint64(b[0:8]), carry)
		b = b[8:]
	}
	var tail [8]byte
	copy(tail[:], b)
	sum, carry = bits.Add64(sum, binary.BigEndian.Uint64(tail[:]), carry)
	sum, carry = bits.Add64(sum, 0, carry)
	return fold(sum>>32 + sum&0xffffffff + carry)
}

// fold reduces a sum of 16-bit words to 16 bits. s must fit in 48 bits.
func fold(s uint64) uint16 {
	s = s>>32 + s&0xffffffff
	s = s>>16 + s&0xffff
	s = s>>16 + s&0xffff
	return uint16(s>>16 + s&0xffff)
}

// sumIPv4 returns the sum of a 20-byte IPv4 header, which is 0xffff if the checksum is correct. It
// adds in little-endian order and swaps the result (RFC 1071, section 2 (B)).
func sumIPv4(h []byte) uint16 {
	_ = h[19]
	return bits.ReverseBytes16(fold(uint64(binary.LittleEndian.Uint32(h[0:4])) +
		uint64(binary.LittleEndian.Uint32(h[4:8])) +
		uint64(binary.LittleEndian.Uint32(h[8:12])) +
		uint64(binary.LittleEndian.Uint32(h[12:16])) +
		uint64(binary.LittleEndian.Uint32(h[16:20]))))
}

// udpChecksumOK reports whether the checksum of a UDP datagram is absent (0), correct or partial.
// addrs are the two IP addresses as they appear in the IP header.
//
// RFC 8200 forbids checksum 0 over IPv6, but RoCEv2 senders such as rxe use it because the ICRC
// covers the same bytes; RFC 6935 allows it for tunnels.
//
// A checksum is partial if it covers only the pseudo-header. The kernel leaves the rest to the NIC,
// and a veth or tap delivers the packet in this state. A corrupted packet has this value once in
// 65536 cases; the ICRC then detects the corruption.
func udpChecksumOK(addrs, udp []byte) bool {
	field := binary.BigEndian.Uint16(udp[6:8])
	if field == 0 {
		return true
	}
	pseudo := fold(uint64(sum16(addrs)) + protoUDP + uint64(len(udp)))
	if field == pseudo {
		return true
	}
	return fold(uint64(pseudo)+uint64(sum16(udp))) == 0xffff
}
