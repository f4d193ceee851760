package roce

import (
	"unsafe"

	"github.com/gorxe/gorxe/mr"
)

// memory calls visit with the memory of the QP and its rings.
func (q *QP) memory(visit func(addr, n uintptr)) {
	visit(uintptr(unsafe.Pointer(q)), unsafe.Sizeof(*q))
	q.qp.Memory(visit)
}

// memory calls visit with the memory that a lookup of the region's keys reads.
func (m *MR) memory(visit func(addr, n uintptr)) { mr.MemoryOf(m.m, visit) }
