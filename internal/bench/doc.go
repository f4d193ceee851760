// Package bench is "gorxe bench": message rate, bandwidth, latency and goodput under loss, side by side with bare AF_XDP
// frames and the kernel's TCP and UDP, in one run on one veth pair of its own.
//
// # Reading order
//
//   - figure.go: what is measured (figures), by whom (lanes), and what is set against what (rows).
//   - command.go, run.go: flags; the rounds, in which all lanes of a figure take turns.
//   - wire.go, side.go: the two sides are two processes of this binary, one in each namespace, told what to do over
//     pipes; without root, two goroutines on an in-memory link.
//   - job.go: the measuring thread of a side, and what it reports.
//   - gorxe.go, bare.go, kernel.go: the measurements: WRITEs, bare frames on the same Port code, TCP and UDP sockets.
//   - mmsg_unsafe.go, offload_unsafe.go, loss.go: batched UDP, segmentation offload of the pair, an XDP program that
//     loses packets of TCP.
//   - report.go, plot.go, packages kit and stat: table and JSON; the picture; medians and spread.
//
// # What is fair
//
// The lanes of a figure put frames of the same size on the wire; each side has one thread, pinned to a CPU of its own, and
// lanes take turns within a round, in turned order every other round, so that a machine whose speed drifts
// treats them alike. All ports have the default rings. In streams a side that has nothing to do spins for 20 us and then blocks, the way
// gorxe does by default, so that CPU time means something; in spinning latencies nobody ever blocks.
package bench
