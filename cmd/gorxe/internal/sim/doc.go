// Package sim is the command "gorxe sim", which runs models of RDMA hardware and compares them with
// their papers. Its only model is that of package papers/prefetch, "gorxe sim prefetch".
//
// # Reading order
//
//   - command.go: flags and run.
package sim
