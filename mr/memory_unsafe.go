package mr

import "unsafe"

// Memory tells where the tables of keys are, for advice on their pages; control plane only.
func (t *Table) Memory(visit func(addr, n uintptr)) {
	for _, x := range []*index{&t.local, &t.remote} {
		b := *x.cur.Load()
		visit(uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b))*unsafe.Sizeof(b[0]))
	}
}

// MemoryOf tells where a region's record is.
func MemoryOf(m *MR, visit func(addr, n uintptr)) {
	visit(uintptr(unsafe.Pointer(m)), unsafe.Sizeof(*m))
}
