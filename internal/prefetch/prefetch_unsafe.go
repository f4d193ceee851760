package prefetch

import "unsafe"

// Line is the assumed size of a cache line in bytes.
const Line = 64

// Object prefetches n lines from the start of *p. n may extend past the object.
func Object[T any](p *T, n uintptr) { run(unsafe.Pointer(p), n) }

// Bytes prefetches up to n lines from the start of b, but none past its end.
func Bytes(b []byte, n int) {
	if len(b) > 0 {
		run(unsafe.Pointer(unsafe.SliceData(b)), uintptr(min(n, (len(b)+Line-1)/Line)))
	}
}

// Pair prefetches the first lines of *p and *q.
func Pair[T, U any](p *T, q *U) { pair(unsafe.Pointer(p), unsafe.Pointer(q)) }
