// Package prefetch asks the processor for cache lines before they are needed: PREFETCHT0 on amd64, PRFM PLDL1KEEP on arm64,
// nothing elsewhere.
//
// A prefetch is a hint. It reads nothing, never faults, whatever the address, and returns at once; so an address may be
// computed from what a peer sent before that was checked. A call costs one to two nanoseconds, since the compiler does not
// inline assembly: fetch several lines a call.
package prefetch
