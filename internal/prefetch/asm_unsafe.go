//go:build amd64 || arm64

package prefetch

import "unsafe"

// Here says whether this machine's prefetches do something.
const Here = true

// run fetches n lines from p on; n is at least 1.
//
//go:noescape
func run(p unsafe.Pointer, n uintptr)

// pair fetches two lines.
//
//go:noescape
func pair(p, q unsafe.Pointer)
