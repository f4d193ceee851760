//go:build amd64 || arm64

package prefetch

import "unsafe"

// run prefetches n lines from p on. n is at least 1.
//
//go:noescape
func run(p unsafe.Pointer, n uintptr)

// pair prefetches the lines at p and q.
//
//go:noescape
func pair(p, q unsafe.Pointer)
