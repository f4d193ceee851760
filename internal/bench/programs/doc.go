// Package programs measures programs of libibverbs under "gorxe run": the stock programs of
// perftest beside "gorxe perf" on the same kind of port, the time of an intercepted call, and the
// memory of an idle supervisor, and "gorxe perf" through a node service.
//
// All processes run on this host and use UDP sockets on two loopback addresses, or AF_XDP on a veth
// pair. The measured sides of a figure alternate, round by round.
//
// Reading order:
//   - figures.go: Config, Run, the figures
//   - link.go: where they run
//   - pair.go: a server and a client, and what they print
//   - service.go: a node service
//   - call.go: a program that makes calls, and its supervisor
//   - verbs_unsafe.go: the call that this program makes
//   - report.go: table, JSON and plot
package programs
