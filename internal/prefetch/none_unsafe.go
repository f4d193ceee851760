//go:build !amd64 && !arm64

package prefetch

import "unsafe"

func run(unsafe.Pointer, uintptr) {}
func pair(p, q unsafe.Pointer)    {}
