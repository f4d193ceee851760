// Package deterministic repeats the experiments of H. Abaza et al., "RDMA-Based Deterministic
// Communication Architecture for Autonomous Driving", 2023, and adds some: preemption points, two
// rates, overload, and the cost of a lost packet. It compares the traffic classes of the engine
// with no classes, and with the scheduler of package transport/flow. It is the subcommand "gorxe
// bench flow".
//
// Most experiments run in virtual time on a link of Gigabit Ethernet with path MTU 1024, as in the
// paper, and give the same figures on any machine. Nothing takes time there but the link. The
// overhead of the scheduler, and small messages beside bulk traffic, are measured in real time on a
// veth pair or in memory.
//
// The paper does not say when its tasks send relative to each other. Its latency of standard RDMA,
// which is 2.3 times as long at most as at least, is reproduced by tasks with independent phases of
// which each uses a twelfth of the link: see window.
//
// # Reading order
//
//   - bench.go: Config and the run.
//   - experiments.go: the experiments and their figures.
//   - network.go, streams.go: two devices in virtual time, and streams of messages by each method.
//   - wire.go, bulk.go: observing packets, losing one; bulk traffic.
//   - latency.go, order.go, yolo.go: the paper's experiments.
//   - sweep.go, rates.go, overload.go, loss.go: those that it does not have.
//   - overhead.go, realtime.go: measurements in real time.
//   - report.go: the output and the plot.
package deterministic
