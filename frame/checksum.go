package frame

import (
	"encoding/binary"
	"math/bits"
)

// sum16 returns the ones' complement sum of b as big-endian 16-bit words, folded
// to 16 bits, a missing last byte taken as zero (RFC 1071). It adds 64-bit words
// with end-around carry: the sum modulo 2^16-1 is the same.
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

// fold brings a sum of 16-bit words, of at most 48 bits, to 16 bits.
func fold(s uint64) uint16 {
	s = s>>32 + s&0xffffffff
	s = s>>16 + s&0xffff
	s = s>>16 + s&0xffff
	return uint16(s>>16 + s&0xffff)
}

// sumIPv4 returns the folded sum of a 20-byte IPv4 header: 0xffff if its checksum
// is right. It adds in the processor's byte order and swaps the sum (RFC 1071, 2 B).
func sumIPv4(h []byte) uint16 {
	_ = h[19]
	return bits.ReverseBytes16(fold(uint64(binary.LittleEndian.Uint32(h[0:4])) + uint64(binary.LittleEndian.Uint32(h[4:8])) +
		uint64(binary.LittleEndian.Uint32(h[8:12])) + uint64(binary.LittleEndian.Uint32(h[12:16])) +
		uint64(binary.LittleEndian.Uint32(h[16:20]))))
}

// udpChecksumOK reports whether a UDP datagram's checksum stands: absent (0), right,
// or partial. addrs are both IP addresses, as they stand in the IP header.
//
// Over IPv6 a checksum of 0 is against RFC 8200 but usual in RoCEv2, whose ICRC
// covers the same bytes (RFC 6935 allows it to tunnels; rxe sends it).
//
// Partial: a packet that a kernel on this host sent through a veth or tap has only
// the pseudo-header's sum there, as the sum of the rest was left to a NIC. A
// damaged packet carries that very value once in 65536, and then the ICRC speaks.
//
// Few packets have one: it stays a call, out of the way of the others.
//
//go:noinline
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
