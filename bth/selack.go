package bth

import (
	"encoding/binary"
	"math/bits"
)

// Sizes of a selective acknowledgment.
const (
	SelACKVersion   = 1  // the only version
	SelACKHeaderLen = 8  // bytes before the bitmap
	MaxSelACKWords  = 16 // words of 32 bits in the bitmap
	MaxSelACKLen    = SelACKHeaderLen + 4*MaxSelACKWords
	// MaxAckLen is the length of the longest ACKNOWLEDGE, from the BTH to the end of the SelACK.
	MaxAckLen = HeaderLen + AETHLen + MaxSelACKLen
)

// SelACK is the selective acknowledgment header. It is the payload of an ACKNOWLEDGE between two
// peers that agreed on selective repeat; it is not part of the IBA. It tells the requester which
// packets the responder holds beyond the first missing one. See docs/selective-repeat.md.
//
//	byte 0     version: 1
//	byte 1     number of bitmap words: 0 to 16
//	bytes 2-3  request packets received more than once, modulo 2^16
//	bytes 4-6  PSN of the first bit of the bitmap
//	byte 7     reserved: 0
//	then       words of 32 bits; the most significant bit is the lowest PSN; 1: held
//
// Only the views that ParseSelACK returns are valid.
type SelACK []byte

// ParseSelACK returns the SelACK in the payload of an ACKNOWLEDGE. ok is false if the payload is
// too short, has another version or too many words. Bytes after the bitmap are ignored. The result
// is a view of payload; its accessors do not panic.
func ParseSelACK(payload []byte) (h SelACK, ok bool) {
	if len(payload) < SelACKHeaderLen || payload[0] != SelACKVersion || payload[1] > MaxSelACKWords {
		return nil, false
	}
	n := SelACKHeaderLen + 4*int(payload[1])
	if len(payload) < n {
		return nil, false
	}
	return SelACK(payload[:n:n]), true
}

// Words returns the number of words in the bitmap, 0 to MaxSelACKWords.
func (h SelACK) Words() int { return (len(h) - SelACKHeaderLen) / 4 }

// Bits returns the number of packets that the bitmap describes.
func (h SelACK) Bits() int { return 8 * (len(h) - SelACKHeaderLen) }

// Duplicates returns how many request packets the responder received more than once, modulo 2^16.
func (h SelACK) Duplicates() uint16 { return binary.BigEndian.Uint16(h[2:4]) }

// Start returns the PSN of the packet that bit 0 describes. Bit i describes Start().Add(i).
func (h SelACK) Start() PSN { return PSN(binary.BigEndian.Uint32(h[4:8]) >> 8) }

// Word returns word i of the bitmap, 0 <= i < Words(). Its most significant bit is bit 32*i.
func (h SelACK) Word(i int) uint32 {
	return binary.BigEndian.Uint32(h[SelACKHeaderLen+4*i:])
}

// Run returns the first run of held packets at or after bit from: the packets of bits start to
// end-1. If there is none, start and end are both Bits(). A negative from counts as 0.
func (h SelACK) Run(from int) (start, end int) {
	start = h.find(max(from, 0), 0)
	return start, h.find(start, ^uint32(0))
}

// find returns the first bit at or after from that is 1, or 0 if flip is all ones. It returns
// Bits() if there is none.
func (h SelACK) find(from int, flip uint32) int {
	for from < h.Bits() {
		w := (h.Word(from/32) ^ flip) << (from % 32)
		if w != 0 {
			return from + bits.LeadingZeros32(w)
		}
		from += 32 - from%32
	}
	return h.Bits()
}

// PutSelACK writes a SelACK to b and returns its length, a multiple of 4. start is the PSN of the
// first bit. The most significant bit of words[0] becomes bit 0. It panics if there are more than
// MaxSelACKWords words.
func PutSelACK(b []byte, start PSN, duplicates uint16, words []uint32) int {
	if len(words) > MaxSelACKWords {
		panic("bth: SelACK has more than MaxSelACKWords words")
	}
	b[0], b[1] = SelACKVersion, byte(len(words))
	binary.BigEndian.PutUint16(b[2:4], duplicates)
	binary.BigEndian.PutUint32(b[4:8], uint32(start)<<8)
	n := SelACKHeaderLen
	for _, w := range words {
		binary.BigEndian.PutUint32(b[n:], w)
		n += 4
	}
	return n
}
