// Package scale measures how the rate of 64 B WRITEs depends on the number of queue pairs and
// memory regions, far beyond the processor's caches, with the engine's prefetching off and on.
//
// # Fairness
//
// All lanes run in one process on the same two devices, which have all QPs and MRs from the
// start. A lane of n QPs uses the first n; the others are idle. So the lanes differ only in the
// memory that they access, and can alternate every few hundred milliseconds. On the link in
// memory one thread drives both devices, and the rate refers to its CPU time: other programs on
// the machine, and the distance between two cores, do not count. On a veth pair each device has
// its own thread and CPU.
//
// Each message goes to another QP (or MR) than the previous one. It is signaled, is the only one
// in flight on its QP, and is acknowledged by its own packet. All lanes have the same number of
// messages in flight. So no cost is shared by several messages of a QP, unless Config.Burst asks
// for it.
//
// # Reading order
//
//   - plan.go: the lanes and their baselines.
//   - bench.go: Config, Run, and the rounds.
//   - devices.go: two devices with all QPs and MRs that a lane needs.
//   - load.go, batch.go: the traffic of a lane and its work requests.
//   - counters.go: the processor's counter of cache misses.
//   - report.go: table, JSON and plot.
package scale
