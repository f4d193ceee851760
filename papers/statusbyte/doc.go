// Package statusbyte is "gorxe bench statusbyte": the experiments of Xiao et al. ("Status-Byte-Assisted RDMA Transmission
// Mechanism", Appl. Sci. 2024, 14, 7437), package transport/statusbyte against its rival transport/slidingwindow, with the
// paper's figures beside ours.
//
// # Reading order
//
//   - command.go: flags; plan.go: the experiments, their sizes, and what the paper says.
//   - world.go: two devices on a veth pair or in memory; lane.go: the two transports behind one interface; pair.go: a
//     connected pair with its receiving thread.
//   - sync.go, transfer.go, cpu.go, retained.go, cameras.go, queues.go: the experiments.
//   - trace.go, observe.go: what is on the wire, as pcap, and what a block costs each end; report.go: plots, notes.
//
// # What is fair
//
// Both transports run on the same two devices, in one process, and take turns, in swapped order every other round. The sending and the
// receiving thread have a CPU each. Filling and processing cost nothing in either, as in the paper: blocks are sent as they are,
// and released as soon as they are handed over. Devices have Manual progress, so a thread that waits drives its own NIC; only the
// cameras run on devices with Auto progress, whose NIC has a thread of its own, since a dozen threads share them.
//
// Both ends see one clock: a latency is the time from the call that sends a block to its hand-over at the receiver.
package statusbyte
