// Package bench measures message rate, bandwidth, latency and goodput under loss of gorxe, side
// by side with bare AF_XDP frames and with the kernel's TCP and UDP, on one veth pair in one
// run.
//
// # Fairness
//
// The lanes of a figure put frames of the same size on the wire. Each side has one thread, pinned
// to its own CPU. The lanes of a figure alternate within a round, and change their order every
// other round, so that drifts of the machine's speed affect all of them alike. All ports have the
// default rings. In streams, a side with nothing to do polls for 20 us and then blocks, as gorxe
// does by default, so that CPU time is meaningful. In spinning latency tests no side ever blocks.
//
// # Reading order
//
//   - figure.go: the figures, their lanes, and which lane is compared with which.
//   - bench.go: Config and Run.
//   - run.go, sample.go: the rounds, and the result of one measurement.
//   - protocol.go, side.go, server.go: the two sides are two processes of this program, one in each
//     namespace, controlled over pipes; on the link in memory they are goroutines.
//   - job.go, stats.go: the measuring thread of a side, and its statistics.
//   - gorxe.go, trips.go, bare.go, kernel.go, runs.go: the measurements: operations of gorxe as a
//     stream and as round trips, bare frames on the same Port code, TCP and UDP sockets, runs of
//     UDP packets.
//   - mmsg_unsafe.go, loss.go: batched UDP system calls, an XDP program that drops packets of TCP.
//   - report.go: table, JSON and plot.
package bench
