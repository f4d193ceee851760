package mr

import (
	"encoding/binary"
	"sync/atomic"
	"unsafe"

	"github.com/gorxe/gorxe/internal/fence"
)

// AddrOf returns the address of the first byte of mem, the usual iova, or 0 for an empty slice. Go
// does not move heap memory.
func AddrOf(mem []byte) uint64 {
	if len(mem) == 0 {
		return 0
	}
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem))))
}

// tailWord describes the access to the last word of a range of n bytes that ends at address end.
// whole is 8 or 4 for an aligned word of that size. Otherwise whole is 0, and part is the number of
// bytes of the range in the aligned 4-byte word of its last byte.
func tailWord(end uintptr, n int) (whole, part int) {
	switch {
	case end&7 == 0 && n >= 8:
		return 8, 8
	case end&3 == 0 && n >= 4:
		return 4, 4
	}
	return 0, min(int((end-1)&3)+1, n)
}

// CopyIn copies a peer's data to registered memory, min(len(dst), len(src)) bytes. It stores the
// last aligned word after all others, with release semantics; see the memory model in the package
// comment. dst and src must not overlap.
func CopyIn(dst, src []byte) {
	n := min(len(dst), len(src))
	if n == 0 {
		return
	}
	p := unsafe.Pointer(unsafe.SliceData(dst))
	whole, part := tailWord(uintptr(p)+uintptr(n), n)
	head := n - part
	raceWrites(dst[:n])
	if head > 0 {
		bulkIn(dst[:head], src[:head])
	}
	last := unsafe.Add(p, head)
	raceRelease(last)
	raceHide()
	// A release store: an atomic exchange would wait until the whole copy has reached the cache.
	switch whole {
	case 8:
		fence.Store64((*atomic.Uint64)(last), binary.NativeEndian.Uint64(src[head:]))
	case 4:
		fence.Store((*atomic.Uint32)(last), binary.NativeEndian.Uint32(src[head:]))
	default:
		mergeBytes(last, src[head:n])
	}
	raceShow()
}

// mergeBytes stores 1 to 3 bytes within one aligned 4-byte word and leaves the others unchanged.
func mergeBytes(p unsafe.Pointer, b []byte) {
	at := uintptr(p) & 3
	word := (*uint32)(unsafe.Pointer(uintptr(p) &^ 3))
	for {
		old := atomic.LoadUint32(word)
		v := old
		copy((*[4]byte)(unsafe.Pointer(&v))[at:], b)
		if atomic.CompareAndSwapUint32(word, old, v) {
			return
		}
	}
}

// CopyOut copies registered memory for a packet, min(len(dst), len(src)) bytes. It loads the last
// aligned word first, with acquire semantics, and the others after it. dst and src must not
// overlap.
func CopyOut(dst, src []byte) {
	if head := copyLast(dst, src); head > 0 {
		bulkOut(dst[:head], src[:head])
	}
}

// CopyOutLast is the first step of CopyOut, for callers with a faster way to copy the rest. It
// copies the last aligned word and returns the number of bytes before it, which the caller copies
// afterwards. With the race detector it copies everything and returns 0, because the detector would
// report the caller's copy.
func CopyOutLast(dst, src []byte) int {
	if raceEnabled {
		CopyOut(dst, src)
		return 0
	}
	return copyLast(dst, src)
}

func copyLast(dst, src []byte) (head int) {
	n := min(len(dst), len(src))
	if n == 0 {
		return 0
	}
	p := unsafe.Pointer(unsafe.SliceData(src))
	whole, part := tailWord(uintptr(p)+uintptr(n), n)
	head = n - part
	last := unsafe.Add(p, head)
	raceHide()
	switch whole {
	case 8:
		binary.NativeEndian.PutUint64(dst[head:], atomic.LoadUint64((*uint64)(last)))
	case 4:
		binary.NativeEndian.PutUint32(dst[head:], atomic.LoadUint32((*uint32)(last)))
	default:
		v := atomic.LoadUint32((*uint32)(unsafe.Pointer(uintptr(last) &^ 3)))
		at := uintptr(last) & 3
		copy(dst[head:n], (*[4]byte)(unsafe.Pointer(&v))[at:])
	}
	raceShow()
	raceReads(src[:n])
	return head
}
