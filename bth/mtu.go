package bth

import "math/bits"

// MTU is a path MTU: the payload bytes of a full packet, without any header. Valid values are 256,
// 512, 1024, 2048 and 4096.
type MTU int

// Headroom is the number of bytes by which an interface MTU must exceed the path MTU: all headers
// and the ICRC. The kernel's rxe uses the same value.
const Headroom = 80

const (
	minMTU MTU = 256
	maxMTU MTU = 4096
)

// Valid reports whether m is one of the five path MTUs.
func (m MTU) Valid() bool { return m >= minMTU && m <= maxMTU && m&(m-1) == 0 }

// Enum returns the IBA code of m: 1 for 256 to 5 for 4096, or 0 if m is not valid.
func (m MTU) Enum() uint8 {
	if !m.Valid() {
		return 0
	}
	return uint8(bits.Len(uint(m)) - 8)
}

// MTUFromEnum returns the path MTU of an IBA code from 1 to 5, or 0 for any other code.
func MTUFromEnum(e uint8) MTU {
	if e < 1 || e > 5 {
		return 0
	}
	return minMTU << (e - 1)
}

// MTUFor returns the largest path MTU that fits an interface MTU in bytes, or 0 if none does.
func MTUFor(interfaceMTU int) MTU {
	for m := maxMTU; m >= minMTU; m >>= 1 {
		if interfaceMTU-Headroom >= int(m) {
			return m
		}
	}
	return 0
}
