//go:build !amd64 && !arm64

package prefetch

import "unsafe"

// Here says whether this machine's prefetches do something.
const Here = false

func run(unsafe.Pointer, uintptr) {}
func pair(p, q unsafe.Pointer)    {}
