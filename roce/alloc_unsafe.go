//go:build linux

package roce

import (
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/mr"
)

// untouchedFrom is the size in bytes from which on an allocation avoids touching the memory.
const untouchedFrom = 1 << 20

// zeroed returns n bytes of the Go heap that are zero. make zeroes a large object even if only its
// first pages were used before. That takes a page fault for each of them, and makes huge pages
// impossible. Large allocations therefore take the memory as it is, and let the kernel drop the
// pages that were used: it zeroes a page when the page is accessed.
func zeroed(n int) []byte {
	page := os.Getpagesize()
	if n < untouchedFrom || n%page != 0 {
		return make([]byte, n)
	}
	var b strings.Builder // the only allocation of the standard library that is not zeroed
	b.Grow(n)
	_ = b.WriteByte(0) // never fails
	own := unsafe.Slice(unsafe.StringData(b.String()), n)
	if mr.AddrOf(own)%uint64(page) != 0 || unix.Madvise(own, unix.MADV_DONTNEED) != nil {
		clear(own) // for example memory that is locked
	}
	return own
}
