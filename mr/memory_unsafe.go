package mr

import "unsafe"

// Memory tells where the tables of keys are, for advice on their pages; control plane only.
func (t *Table) Memory(visit func(addr, n uintptr)) {
	for _, x := range []*index{&t.local, &t.remote} {
		b := x.cur.Load()
		span(visit, b.keys)
		span(visit, b.mrs)
	}
}

func span[T any](visit func(addr, n uintptr), s []T) {
	visit(uintptr(unsafe.Pointer(unsafe.SliceData(s))), uintptr(len(s))*unsafe.Sizeof(s[0]))
}

// MemoryOf tells where a region's record is.
func MemoryOf(m *MR, visit func(addr, n uintptr)) {
	visit(uintptr(unsafe.Pointer(m)), unsafe.Sizeof(*m))
}
