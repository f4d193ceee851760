// Package prefetch presents the reproduction of "Toward Scalable RDMA Through Resource Prefetching"
// (Ma et al., IEEE Computer Architecture Letters 24, 2025).
//
// Package model simulates the paper's RNIC. This package prints and plots its figures beside the
// paper's. Package scale measures the effect of prefetching on gorxe's own engine.
//
// # Reading order
//
//   - prefetch.go: Config and Run.
//   - report.go: table, JSON and plot of the figures.
//   - explain.go: the assumptions of the model, and the results with other assumptions.
package prefetch
