package roce

import (
	"math"
	"os"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/mr"
)

const (
	// alignHuge is the size of a region from which on it is aligned to a huge page. The alignment
	// wastes at most a quarter of it.
	alignHuge = 4 * hugeSize
	// probeFrom is the size in bytes from which on probe asks the operating system. Smaller objects
	// rarely make the runtime ask for memory.
	probeFrom = 1 << 20
	// untouchedFrom is the size in bytes from which on an allocation avoids touching the memory.
	untouchedFrom = 1 << 20
	// arenaSize is the unit in which the Go runtime reserves memory.
	arenaSize = 64 << 20
)

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

// probe reports whether the operating system has n bytes. The Go runtime ends the process if it
// gets no memory, so probe maps as much itself for a moment. That fails if the address space is
// limited (RLIMIT_AS) or if the kernel does not overcommit.
func probe(n int) error {
	if n < probeFrom {
		return nil
	}
	if n > math.MaxInt-arenaSize {
		return unix.ENOMEM
	}
	mem, err := unix.Mmap(-1, 0, n+arenaSize, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return err
	}
	return unix.Munmap(mem)
}

// aligned returns the size aligned bytes of an allocation of allocLen(size) bytes. It advises the
// kernel to use huge pages for them if they are large.
func aligned(own []byte, size int) []byte {
	align := uint64(alignment(size))
	at := int(-mr.AddrOf(own) & (align - 1))
	mem := own[at : at+size : at+size]
	if size >= hugeSize && hugeHere() {
		_ = unix.Madvise(mem, unix.MADV_HUGEPAGE) // only advice
	}
	return mem
}
