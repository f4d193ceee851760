package roce

import (
	"math"
	"os"

	"github.com/gorxe/gorxe/mr"
)

// alignHuge is the size of a region from which on it is aligned to a huge page. The alignment
// wastes at most a quarter of it.
const alignHuge = 4 * hugeSize

// alignment returns the alignment of the memory of a region of size bytes.
func alignment(size int) int {
	if size >= alignHuge && hugeHere() {
		return hugeSize
	}
	return os.Getpagesize()
}

// allocLen returns the length of the allocation that contains size aligned bytes.
func allocLen(size int) int {
	page := os.Getpagesize()
	if size > math.MaxInt-2*hugeSize { // more than any machine has, without overflow
		return math.MaxInt
	}
	n := (size + page - 1) &^ (page - 1)
	if align := alignment(size); align > heapAlign {
		n += align - heapAlign
	}
	return n
}

// heapAlign is the alignment of Go's allocations of whole pages.
const heapAlign = 4096

// aligned returns the size aligned bytes of an allocation of allocLen(size) bytes. It advises the
// kernel to use huge pages for them if they are large.
func aligned(own []byte, size int) []byte {
	align := uint64(alignment(size))
	at := int(-mr.AddrOf(own) & (align - 1))
	mem := own[at : at+size : at+size]
	if size >= hugeSize && hugeHere() {
		adviseHuge(uintptr(mr.AddrOf(mem)), uintptr(size))
	}
	return mem
}
