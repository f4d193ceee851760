// Package verify decides whether RDMA operations had the effect that their work requests ask for:
// completions, atomics and memory. The demo and the simulator of package fuzz/sim use it.
//
// Reading order:
//
//   - completion.go: completions of send and receive work requests.
//   - memory.go: atomics and comparison of memory.
package verify
