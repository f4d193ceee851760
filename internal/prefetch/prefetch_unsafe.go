package prefetch

import "unsafe"

// Line is the distance between the lines that are fetched, bytes.
const Line = 64

// Object fetches the first n lines of what p points to, or of what follows it.
func Object[T any](p *T, n uintptr) { run(unsafe.Pointer(p), n) }

// Bytes fetches the first n lines of b, those that b has.
func Bytes(b []byte, n int) {
	if len(b) > 0 {
		run(unsafe.Pointer(unsafe.SliceData(b)), uintptr(min(n, (len(b)+Line-1)/Line)))
	}
}

// Pair fetches the lines of two objects' first bytes.
func Pair[T, U any](p *T, q *U) { pair(unsafe.Pointer(p), unsafe.Pointer(q)) }
