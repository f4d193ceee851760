package mr

import (
	"sync/atomic"
	"unsafe"
)

// word64 returns the address of the 8 bytes at b. It panics if there are fewer bytes or they are
// not aligned: the engine checks the addresses of peers, so this is an error in this package or the
// program.
func word64(b []byte) *uint64 {
	p := unsafe.Pointer(unsafe.SliceData(b))
	if len(b) < 8 || uintptr(p)&7 != 0 {
		panic("mr: 8-byte access is not aligned or outside the region")
	}
	return (*uint64)(p)
}

func word32(b []byte) *uint32 {
	p := unsafe.Pointer(unsafe.SliceData(b))
	if len(b) < 4 || uintptr(p)&3 != 0 {
		panic("mr: 4-byte access is not aligned or outside the region")
	}
	return (*uint32)(p)
}

// FetchAdd adds to the 8 aligned bytes at b, in host byte order, and returns the old value (IBA
// 9.4.5 FetchAdd).
func FetchAdd(b []byte, add uint64) (old uint64) {
	w := word64(b)
	raceRelease(unsafe.Pointer(w))
	raceHide()
	old = atomic.AddUint64(w, add) - add
	raceShow()
	raceAcquire(unsafe.Pointer(w))
	return old
}

// CompareSwap stores swap to the 8 aligned bytes at b if they equal compare, in host byte order,
// and returns the old value (IBA 9.4.5 CmpSwap).
func CompareSwap(b []byte, compare, swap uint64) (old uint64) {
	w := word64(b)
	raceRelease(unsafe.Pointer(w))
	raceHide()
	old = compare
	// There is no load before the first try: even a failed swap is a barrier after earlier WRITEs
	// (rule 3 of the memory model).
	for !atomic.CompareAndSwapUint64(w, compare, swap) {
		if old = atomic.LoadUint64(w); old != compare {
			break
		}
	}
	raceShow()
	raceAcquire(unsafe.Pointer(w))
	return old
}

// Load64 loads 8 bytes at off, in host byte order, with acquire semantics. Like the other
// accessors, it panics if off is outside of the region or not aligned to the size of the access.
func (m *MR) Load64(off int) uint64 {
	w := word64(m.mem[off:])
	raceHide()
	v := atomic.LoadUint64(w)
	raceShow()
	raceAcquire(unsafe.Pointer(w))
	return v
}

// Store64 stores 8 bytes at off, in host byte order, with release semantics.
func (m *MR) Store64(off int, v uint64) {
	w := word64(m.mem[off:])
	raceRelease(unsafe.Pointer(w))
	raceHide()
	atomic.StoreUint64(w, v)
	raceShow()
}

// Add64 adds to the 8 bytes at off and returns the new value. It is atomic with FETCH_ADD and
// CMP_SWAP of peers.
func (m *MR) Add64(off int, add uint64) uint64 {
	return FetchAdd(m.mem[off:], add) + add
}

// CompareAndSwap64 stores v to the 8 bytes at off if they equal old, and reports whether it did.
func (m *MR) CompareAndSwap64(off int, old, v uint64) bool {
	return CompareSwap(m.mem[off:], old, v) == old
}

// Load32 loads 4 bytes at off, in host byte order, with acquire semantics.
func (m *MR) Load32(off int) uint32 {
	w := word32(m.mem[off:])
	raceHide()
	v := atomic.LoadUint32(w)
	raceShow()
	raceAcquire(unsafe.Pointer(w))
	return v
}

// Store32 stores 4 bytes at off, in host byte order, with release semantics.
func (m *MR) Store32(off int, v uint32) {
	w := word32(m.mem[off:])
	raceRelease(unsafe.Pointer(w))
	raceHide()
	atomic.StoreUint32(w, v)
	raceShow()
}

// Load8 loads the byte at off with acquire semantics, for polling a status byte.
func (m *MR) Load8(off int) byte {
	p := unsafe.Pointer(&m.mem[off])
	raceHide()
	v := atomic.LoadUint32((*uint32)(unsafe.Pointer(uintptr(p) &^ 3)))
	raceShow()
	raceAcquire(p)
	return (*[4]byte)(unsafe.Pointer(&v))[uintptr(p)&3]
}

// Store8 stores the byte at off with release semantics. It leaves the neighboring bytes unchanged.
func (m *MR) Store8(off int, v byte) {
	p := unsafe.Pointer(&m.mem[off])
	b := [1]byte{v}
	raceRelease(p)
	raceHide()
	mergeBytes(p, b[:])
	raceShow()
}
