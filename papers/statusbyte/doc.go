// Package statusbyte repeats the experiments of Xiao et al. ("Status-Byte-Assisted RDMA
// Transmission Mechanism", Appl. Sci. 2024, 14, 7437): package transport/statusbyte compared with
// package transport/slidingwindow.
//
// # Fairness
//
// Both transports run on the same two devices of one process and alternate; their order changes
// every other round. The sending and the receiving thread have a CPU each. Filling and processing
// a block costs nothing, as in the paper: a block is sent as it is and released when it arrives.
// The devices have Manual progress, so that a thread that waits drives its own device. Only the
// cameras use devices with Auto progress, because a dozen threads share each device.
//
// Both sides use the same clock. A latency is the time from the call that sends a block until the
// receiver has it.
//
// # Reading order
//
//   - experiments.go: the experiments and the paper's figures.
//   - bench.go: Config, Run, and the rounds.
//   - devices.go: the two devices.
//   - transports.go: both transports behind one interface.
//   - pair.go: a connected sender and receiver.
//   - sync.go, transfer.go, load.go, retained.go, cameras.go, queues.go: the measurements.
//   - trace.go, observe.go: captured packets, and the cost of a block on both sides.
//   - report.go, plots.go: table, JSON and plots.
package statusbyte
