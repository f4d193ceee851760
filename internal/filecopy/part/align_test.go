package part

import "unsafe"

func aligned(b []byte) bool { return uintptr(unsafe.Pointer(&b[0]))%directAlign == 0 }
