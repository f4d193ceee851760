//go:build race

package mr

import (
	"runtime"
	"sync"
	"unsafe"
)

const raceEnabled = true

// The race detector knows plain accesses and sync/atomic operations of 4 and 8 bytes. The copies of
// the device fit neither: a copy is plain and of byte granularity, but must not conflict with an
// atomic on a word that it overlaps, and an atomic on a word must not conflict with plain accesses
// to its other bytes. Copying with atomic words would cause false reports for neighboring bytes and
// cost the detector 2 KiB for every 8 bytes.
//
// In race builds the accesses are therefore hidden from the detector (RaceDisable hides
// sync/atomic, go:norace hides plain accesses), and the order that the memory model guarantees is
// reported explicitly, as release and acquire on the aligned 8 bytes around an address. CopyIn
// reports a plain write of its range. This catches a program that reads too early, or that reuses
// memory too early after Deregister.

func raceHide() { runtime.RaceDisable() }
func raceShow() { runtime.RaceEnable() }

func granule(p unsafe.Pointer) unsafe.Pointer {
	return unsafe.Pointer(uintptr(p) &^ 7)
}

func raceAcquire(p unsafe.Pointer) { runtime.RaceAcquire(granule(p)) }
func raceRelease(p unsafe.Pointer) { runtime.RaceReleaseMerge(granule(p)) }

// wire orders all copies for the detector. Concurrent writes by several peers to one region are not
// an error of this program. And the handling of a packet happens after it was sent by another
// device in the process, but the detector does not see the network.
var wire sync.Mutex

func raceWrites(b []byte) {
	wire.Lock()
	runtime.RaceWriteRange(unsafe.Pointer(unsafe.SliceData(b)), len(b))
	wire.Unlock()
}

// raceReads reports only the acquire and not the read. A duplicate READ request may read memory
// that the program already uses again. Its receiver discards that response.
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

// hiddenCopy copies in a loop, because the detector would report the built-in copy.
//
//go:norace
func hiddenCopy(dst, src []byte) {
	for i := range dst {
		dst[i] = src[i]
	}
}
