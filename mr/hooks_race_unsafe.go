//go:build race

package mr

import (
	"runtime"
	"sync"
	"unsafe"
)

const raceEnabled = true

// The race detector knows plain accesses and sync/atomic of 4 and 8 bytes. A
// NIC's copy against a program's accessor is neither: the copy is plain, byte
// granular, and must not conflict with an atomic on a word that it overlaps;
// an atomic on a word must not conflict with a neighbour's plain byte. Doing
// the copies with word-wise atomics instead would blame neighbours, and cost
// the detector a vector clock (2 KiB) for every 8 bytes copied.
//
// So in race builds the accesses themselves are hidden (inside RaceDisable
// the detector passes sync/atomic through; go:norace hides the plain ones),
// and the order that the memory model promises is told in words: release and
// acquire on the aligned 8 bytes around an address. What CopyIn writes is
// told as one plain write, so that a program which reads too early, or owns
// the memory again too early after Deregister, is caught.

func raceHide() { runtime.RaceDisable() }
func raceShow() { runtime.RaceEnable() }

func granule(p unsafe.Pointer) unsafe.Pointer {
	return unsafe.Pointer(uintptr(p) &^ 7)
}

func raceAcquire(p unsafe.Pointer) { runtime.RaceAcquire(granule(p)) }
func raceRelease(p unsafe.Pointer) { runtime.RaceReleaseMerge(granule(p)) }

// wire orders all copies for the detector. Peers that use one region at once
// are the peers' affair, not a fault of this program; and what one shard does
// because of a packet that another sent happens after it, though the detector
// does not see through a network.
var wire sync.Mutex

func raceWrites(b []byte) {
	wire.Lock()
	runtime.RaceWriteRange(unsafe.Pointer(unsafe.SliceData(b)), len(b))
	wire.Unlock()
}

// raceReads does not tell the read itself: a duplicate READ request makes the
// NIC read again what the program may have taken back by then, and the answer
// is thrown away by its receiver.
func raceReads(b []byte) {
	first := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	for off := 0; off < len(b); off += 8 - int((first+uintptr(off))&7) {
		raceAcquire(unsafe.Pointer(&b[off]))
	}
	wire.Lock()
	wire.Unlock() //nolint:staticcheck // an empty section: only its order counts
}

//go:norace
func bulkIn(dst, src []byte) { hiddenCopy(dst, src) }

//go:norace
func bulkOut(dst, src []byte) { hiddenCopy(dst, src) }

// hiddenCopy copies by a loop, because the built-in copy would be reported.
//
//go:norace
func hiddenCopy(dst, src []byte) {
	for i := range dst {
		dst[i] = src[i]
	}
}
