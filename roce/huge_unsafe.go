package roce

import (
	"unsafe"

	"github.com/gorxe/gorxe/mr"
)

// memory tells where the QP and its rings are.
func (q *QP) memory(visit func(addr, n uintptr)) {
	visit(uintptr(unsafe.Pointer(q)), unsafe.Sizeof(*q))
	q.qp.Memory(visit)
}

// memory tells where what a look-up of the region's keys reads is.
func (m *MR) memory(visit func(addr, n uintptr)) { mr.MemoryOf(m.m, visit) }
