// Package prefetch asks the processor to load cache lines before they are needed. It uses
// PREFETCHT0 on amd64, PRFM PLDL1KEEP on arm64, and does nothing on other architectures.
//
// A prefetch is a hint. It has no result, never faults for any address, and returns at once. An
// address may therefore be computed from received data that was not checked yet. The compiler does
// not inline assembly functions, so prefetch several lines per call.
//
// Reading order:
//
//   - prefetch_unsafe.go: Object, Bytes and Pair
//   - asm_unsafe.go, none_unsafe.go: the instructions, or nothing
package prefetch
