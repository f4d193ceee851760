// Package perf measures the bandwidth and the latency of one RDMA operation between a client and a
// server, with the parameters and results of perftest (ib_write_bw and related programs). Both
// sides are gorxe; package stock, below this one, handles a side that is perftest.
//
// How it measures:
//
//   - Bandwidth: each queue pair keeps up to Params.Depth work requests outstanding. They are
//     posted in batches whose last one is signaled. The time runs from the first post to the last
//     completion. The peak is the best of all intervals of at least 10 ms and 8 batches between two
//     completions. With Params.Bidirectional both sides measure, and the result is the sum.
//   - write-lat: the client WRITEs; the server polls the last byte of its buffer and WRITEs back.
//     send-lat: the same with SENDs and receive completions. Both report half of the round trip,
//     like perftest.
//   - read-lat and atomic-lat report the time from post to completion.
//
// In latency tests, the measuring goroutine itself receives and sends packets while it polls, also
// on a device with automatic progress (gorxe up), whose own goroutine rests meanwhile.
//
// A session uses package exchange: the client sends Params in its request and a Run before each
// run. After a run, the sides exchange what they measured.
//
// Reading order:
//   - ops.go: the operations
//   - params.go, options.go: what a test consists of, its limits, and the flags for it
//   - side.go: one side of a session while it runs
//   - bandwidth.go, latency.go, spinner.go: the loops that measure
//   - row.go: the result of a run
//   - prove.go: what a client must prove before a server streams to it
//   - run.go: one run between two sides
//   - client.go, host.go: the two sides
package perf
