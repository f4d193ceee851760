package frame

import (
	"encoding/binary"
	"hash/crc32"
	"math/bits"
)

// This file computes CRC-32 in steps of 256 bytes on processors that multiply eight pairs of
// polynomials over GF(2) at a time.
//
// A CRC is the remainder of the message, taken as a polynomial over GF(2) and multiplied by x^32,
// modulo P. The remainder does not change if a part of the message is replaced by a congruent value
// at another position: 128 bits that precede other 128 bits by D bits may be multiplied by x^D mod
// P and added to them. Four registers of four such parts move through the packet in steps of 2048
// bits. At the end, all sixteen parts are moved onto the last one. An incomplete last step is
// filled up with zeros after the packet. They multiply the message by a power of x, which a
// multiplication by the inverse power undoes, so that no length needs special code.
//
// Everything is in CRC-32's reflected bit order: the first of a register's 128 bits is the
// coefficient of x^127. The product of two reflected 64-bit factors is one position too high, as if
// multiplied by x. Every exponent is therefore reduced by one.

// foldStep is the number of bytes that crcAVX512 processes per step.
const foldStep = 256

// foldTable holds the constants of crcAVX512. Each pair moves 128 bits: the first element moves the
// first 64 bits, the second the last 64 bits.
type foldTable struct {
	step  [4][2]uint64    // from one step to the next (D = 2048), for each part of a register
	last  [4][4][2]uint64 // from each part of each register to the end of the last part, times x^32
	index [256]uint8      // 0, 1, 2, ...
	x64   [2]uint64       // moves 32 bits by 64 bits; the second element is unused
	mu, p [2]uint64       // x^64/P without remainder, and P: 33 bits each
	low   [2]uint64       // selects the first 32 bits of a register
	undo  [256][2]uint64  // undoes i zero bytes: D = -8*i
}

// headMask changes the first bytes of a packet for the CRC: (b | or) ^ xor.
type headMask struct {
	or, xor [64]byte
}

// icrcMasks are the masks of the ICRC for IPv4 and IPv6. They set the variant fields to ones and
// add the start value.
var icrcMasks = [2]headMask{makeICRCMask(lenIPv4), makeICRCMask(lenIPv6)}

func icrcMask(ipLen int) *headMask {
	if ipLen == lenIPv4 {
		return &icrcMasks[0]
	}
	return &icrcMasks[1]
}

func makeICRCMask(ipLen int) (m headMask) {
	maskHead(m.or[:], ipLen)
	binary.LittleEndian.PutUint32(m.xor[:], seedRegister)
	for i := range 4 {
		m.or[i] ^= m.xor[i] // maskHead has added the seed
	}
	return m
}

// foldConstants is nil if the processor does not support crcAVX512.
var foldConstants = makeFoldTable(crc32.IEEE)

func makeFoldTable(poly uint32) *foldTable {
	if !haveAVX512 {
		return nil
	}
	const (
		least = -8*255 - 1
		most  = 2048 + 63
	)
	// pow[n-least] is x^n mod P, reflected: the first of 32 bits is the coefficient of x^31.
	var pow [most - least + 1]uint32
	for n, v := 0, uint32(1)<<31; n <= most; n++ {
		pow[n-least] = v
		v = v>>1 ^ poly&-(v&1)
	}
	for n := -1; n >= least; n-- {
		v := pow[n+1-least]
		v = v<<1 ^ (poly<<1|1)&-(v>>31) // P is odd, so x has an inverse
		pow[n-least] = v
	}
	move := func(d int) [2]uint64 {
		return [2]uint64{uint64(pow[d+63-least]) << 32, uint64(pow[d-1-least]) << 32}
	}
	t := new(foldTable)
	for part := range 4 {
		t.step[part] = move(2048)
		for reg := range 4 {
			t.last[reg][part] = move((3-reg)*512 + (3-part)*128 + 32)
		}
	}
	for i := range t.undo {
		t.index[i] = uint8(i)
		t.undo[i] = move(-8 * i)
	}
	t.x64[0] = move(0)[0]
	t.low[0] = 1<<32 - 1
	t.p[0] = uint64(poly)<<1 | 1
	p, rest, mu := bits.Reverse64(t.p[0])>>31, uint64(0), uint64(0)
	for n := 64; n >= 0; n-- { // long division of x^64
		rest <<= 1
		if n == 64 {
			rest |= 1
		}
		mu <<= 1
		if rest>>32 != 0 {
			rest ^= p
			mu |= 1
		}
	}
	t.mu[0] = bits.Reverse64(mu) >> 31
	return t
}
