package frame

import (
	"hash/crc32"
	"math/bits"
)

// A packet's CRC in pieces of 256 bytes, for processors that multiply eight pairs of polynomials over GF(2) at a time.
//
// A CRC is the remainder of the message, a polynomial over GF(2), times x^32 by P. Nothing changes modulo P if a part of the message
// is replaced by something congruent that stands elsewhere: so 128 bits that stand D bits before others may be multiplied by
// x^D mod P and added there. Four registers of four such parts walk through the packet in steps of 2048 bits; in the end all sixteen
// parts are moved onto the last one. What is missing to whole steps is taken as zeros behind the packet, which multiply the
// message by a power of x; the power is taken away again by its inverse, so that no length needs code of its own.
//
// Everything is in CRC-32's reflected order: of a register's 128 bits the first stands for x^127. The product of two reflected
// 64-bit factors comes out one place too high, as if it were multiplied by x: hence the -1 in every exponent.

// foldBlock is how many bytes sumWide takes in a step.
const foldBlock = 256

// foldTable holds the constants of sumWide. A pair of them moves 128 bits: for the first 64 bits, and for the rest.
type foldTable struct {
	step  [4][2]uint64    // from one step to the next: D = 2048, for each of a register's four parts
	last  [4][4][2]uint64 // from each part of each register to the end of the last, and x^32
	place [256]uint8      // 0, 1, 2, ...
	x64   [2]uint64       // for 32 bits that stand 64 before the last 64 (the second is not used)
	mu, p [2]uint64       // x^64/P without its remainder, and P: 33 bits each
	low   [2]uint64       // the first 32 bits of a register
	back  [256][2]uint64  // D = -8*i: takes i bytes of zeros away
}

// headMask says what is done to the first bytes of a packet before they count: or, then xor.
type headMask struct {
	or, xor [64]byte
}

// icrcMasks are those of the ICRC, for IPv4 and IPv6: the variant fields become ones, the start value is added.
var icrcMasks = [2]headMask{makeICRCMask(lenIPv4), makeICRCMask(lenIPv6)}

func maskOf(ipLen int) *headMask {
	if ipLen == lenIPv4 {
		return &icrcMasks[0]
	}
	return &icrcMasks[1]
}

func makeICRCMask(ipLen int) (m headMask) {
	zero, s := make([]byte, lenIPv6+lenUDP+16), new(scratch)
	s.putHead(zero, ipLen)
	copy(m.or[:], s.b[zeroRoom:][:len(zero)])
	for i := range 4 {
		m.xor[i] = byte(seedRegister >> (8 * i))
		m.or[i] ^= m.xor[i]
	}
	return m
}

// folding are the constants, where sumWide can be used.
var folding = makeFoldTable()

func makeFoldTable() *foldTable {
	if !wideHere {
		return nil
	}
	const (
		least = -8*255 - 1
		most  = 2048 + 63
	)
	// pow[n-least] is x^n mod P, reflected: the first of 32 bits stands for x^31.
	poly := uint32(crc32.IEEE)
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
	for i := range t.back {
		t.place[i] = uint8(i)
		t.back[i] = move(-8 * i)
	}
	t.x64[0] = move(0)[0]
	t.low[0] = 1<<32 - 1
	t.p[0] = crc32.IEEE<<1 | 1
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
