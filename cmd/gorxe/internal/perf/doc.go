// Package perf is the command "gorxe perf": bandwidth and latency of one operation between two
// hosts, with the flags and columns of perftest. Packages internal/perf and internal/perf/stock do
// the work.
//
// Reading order:
//   - command.go: the flags and the client
//   - serve.go: the server for one client
//   - print.go: the columns
package perf
