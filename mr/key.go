package mr

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
)

// feistelRounds is the number of rounds of FF1 in NIST SP 800-38G, the same construction over small
// domains.
const feistelRounds = 10

// permutation maps counter values from 0 to 2^32-1 one to one to 32-bit keys in a secret order. It
// is a Feistel network of two 16-bit halves with AES-128 as the round function.
type permutation struct {
	block   cipher.Block
	in, out [aes.BlockSize]byte
}

func (p *permutation) init(rand func() uint64) {
	var key [16]byte
	binary.LittleEndian.PutUint64(key[:8], rand())
	binary.LittleEndian.PutUint64(key[8:], rand())
	block, err := aes.NewCipher(key[:])
	if err != nil {
		panic(err) // 16 is a valid key length
	}
	p.block = block
}

// at returns the key of counter value c.
func (p *permutation) at(c uint32) Key {
	l, r := uint16(c>>16), uint16(c)
	for round := range byte(feistelRounds) {
		p.in[0] = round
		binary.LittleEndian.PutUint16(p.in[1:], r)
		p.block.Encrypt(p.out[:], p.in[:])
		l, r = r, l^binary.LittleEndian.Uint16(p.out[:])
	}
	return Key(l)<<16 | Key(r)
}
