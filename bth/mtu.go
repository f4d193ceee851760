package bth

import "math/bits"

// MTU is a path MTU: the payload bytes of a full packet, without any header.
// 256, 512, 1024, 2048 and 4096 exist.
type MTU int

// Headroom is what a device's IP MTU must offer beyond the path MTU, as rxe
// counts it: room for every header and the ICRC.
const Headroom = 80

const (
	minMTU MTU = 256
	maxMTU MTU = 4096
)

// Valid reports whether m is one of the five path MTUs.
func (m MTU) Valid() bool { return m >= minMTU && m <= maxMTU && m&(m-1) == 0 }

// Enum returns the architecture's code: 1 for 256 up to 5 for 4096, 0 if m is no
// path MTU.
func (m MTU) Enum() uint8 {
	if !m.Valid() {
		return 0
	}
	return uint8(bits.Len(uint(m)) - 8)
}

// MTUFromEnum returns the path MTU of a code 1..5, and 0 for any other.
func MTUFromEnum(e uint8) MTU {
	if e < 1 || e > 5 {
		return 0
	}
	return minMTU << (e - 1)
}

// MTUFor returns the largest path MTU that a device of the given IP MTU (bytes)
// can carry, and 0 if it cannot carry the smallest.
func MTUFor(deviceMTU int) MTU {
	for m := maxMTU; m >= minMTU; m >>= 1 {
		if deviceMTU-Headroom >= int(m) {
			return m
		}
	}
	return 0
}
