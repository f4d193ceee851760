package qp

import "unsafe"

// noescape returns a. It hides from the compiler that a is used, which otherwise concludes from the
// atomic load of the path that everything a SendWR refers to escapes to the heap. Then each
// []SGE{...} in a call of PostSend would allocate.
//
//go:nosplit
//go:nocheckptr
func noescape(a *AH) *AH {
	return (*AH)(unsafe.Add(unsafe.Pointer(nil), uintptr(unsafe.Pointer(a))))
}
