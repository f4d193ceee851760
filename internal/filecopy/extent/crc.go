package extent

import (
	"hash/crc32"

	"github.com/gorxe/gorxe/frame"
)

// The CRC is a polynomial over GF(2) modulo poly. Bits are reversed: bit 31 is the coefficient of
// x^0, as in hash/crc32.
const (
	poly = crc32.Castagnoli
	one  = 1 << 31 // the polynomial 1
)

var table = crc32.MakeTable(crc32.Castagnoli)

// powers[k] is x^(8 * 2^k) modulo poly: the factor by which 2^k more bytes move a CRC.
var powers = func() (p [64]uint32) {
	p[0] = one >> 8
	for k := 1; k < len(p); k++ {
		p[k] = multiply(p[k-1], p[k-1])
	}
	return p
}()

// Sum returns the CRC32C of data.
func Sum(data []byte) uint32 { return frame.Castagnoli(data) }

// Append returns the CRC32C of the concatenation of bytes with the CRC crc, and data.
func Append(crc uint32, data []byte) uint32 { return crc32.Update(crc, table, data) }

// Combine returns the CRC32C of the concatenation of two byte sequences with the CRCs a and b. n is
// the length of the second one in bytes, at least 0.
func Combine(a, b uint32, n int64) uint32 { return shift(a, n) ^ b }

// Zeros returns the CRC32C of n zero bytes.
func Zeros(n int64) uint32 {
	// The CRC of a message is the remainder of its bits with the first 32 inverted, inverted. For
	// zeros, only the inversions are left.
	return ^shift(^uint32(0), n)
}

// shift returns crc * x^(8n).
func shift(crc uint32, n int64) uint32 {
	for k := 0; n > 0; k, n = k+1, n>>1 {
		if n&1 != 0 {
			crc = multiply(crc, powers[k])
		}
	}
	return crc
}

// multiply returns a*b modulo poly.
func multiply(a, b uint32) (product uint32) {
	for ; a != 0; a <<= 1 {
		if a&one != 0 {
			product ^= b
		}
		b = b>>1 ^ poly&-(b&1) // b * x
	}
	return product
}
