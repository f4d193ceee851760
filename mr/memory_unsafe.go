package mr

import "unsafe"

// Memory calls visit with the address and size of the tables of keys, for madvise. Control plane
// only.
func (t *Table) Memory(visit func(addr, n uintptr)) {
	for _, x := range []*index{&t.local, &t.remote} {
		b := *x.cur.Load()
		visit(uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b))*unsafe.Sizeof(b[0]))
	}
}

// MemoryOf calls visit with the address and size of a region's record.
func MemoryOf(m *MR, visit func(addr, n uintptr)) {
	visit(uintptr(unsafe.Pointer(m)), unsafe.Sizeof(*m))
}
