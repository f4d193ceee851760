//go:build !race

package mr

import "unsafe"

const raceEnabled = false

// Without the race detector the hooks do nothing.

func raceHide()                  {}
func raceShow()                  {}
func raceAcquire(unsafe.Pointer) {}
func raceRelease(unsafe.Pointer) {}
func raceWrites([]byte)          {}
func raceReads([]byte)           {}
func bulkIn(dst, src []byte)     { copyPieces(dst, src) }
func bulkOut(dst, src []byte)    { copyPieces(dst, src) }

// piece limits the length of a copy. Go copies more than 2048 bytes with a string instruction. It
// takes more than twice as long if the destination is aligned to 16 bytes and the source is not, as
// is usual for packets (docs/experiments.md).
const piece = 1024

// copyPieces copies src in pieces.
func copyPieces(dst, src []byte) {
	for len(src) > piece {
		copy(dst[:piece], src[:piece])
		dst, src = dst[piece:], src[piece:]
	}
	copy(dst, src)
}
