package roce

import (
	"testing"
	"unsafe"

	"github.com/gorxe/gorxe/qp"
)

// TestLayout: a QP fills whole cache lines, so that each QP of a slab starts with one, and the
// engine's part comes first.
func TestLayout(t *testing.T) {
	var q QP
	if n := unsafe.Sizeof(q); n%64 != 0 {
		t.Errorf("a QP has %d bytes, want a multiple of 64", n)
	}
	if unsafe.Offsetof(q.qp) != 0 {
		t.Error("the engine's part does not come first")
	}
	if qpSlab*unsafe.Sizeof(q) <= 32<<10 {
		t.Error("a slab is too small for the allocator to align it to a page")
	}
	t.Logf("%d bytes, %d of them the engine's", unsafe.Sizeof(q), unsafe.Sizeof(qp.QP{}))
}
