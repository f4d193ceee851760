// Package sim is the command "gorxe sim": models of RDMA hardware beside what their papers
// report. Its only model is that of package papers/prefetch, "gorxe sim prefetch".
//
// # Reading order
//
//   - command.go: flags and run.
package sim
