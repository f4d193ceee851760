package supervisor

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// statBytes returns the memory of st, which has the layout that the kernel uses.
func statBytes(st *unix.Stat_t) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(st)), unsafe.Sizeof(*st))
}

// statxBytes returns the memory of st.
func statxBytes(st *unix.Statx_t) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(st)), unsafe.Sizeof(*st))
}
