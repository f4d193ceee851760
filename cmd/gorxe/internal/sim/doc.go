// Package sim is the command "gorxe sim", which runs simulations: "gorxe sim network" simulates
// gorxe on lossy, long and shared networks (package internal/netsim), and "gorxe sim prefetch" is a
// model of RDMA hardware beside the results of its paper (package papers/prefetch).
//
// # Reading order
//
//   - command.go: the command and what its subcommands share
//   - network.go: flags and run of "gorxe sim network"
//   - prefetch.go: flags and run of "gorxe sim prefetch"
package sim
