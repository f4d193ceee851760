// Package scale is "gorxe bench scale": how the rate of 64 B WRITEs holds when queue pairs and memory regions grow far
// beyond the processor's caches, with the engine's prefetching off and on.
//
// # Reading order
//
//   - plan.go: what is measured (lanes), and which lane is set against which.
//   - world.go: two devices on one link, with all QPs and MRs that any lane needs.
//   - load.go: the traffic of a lane, and how it is counted.
//   - counters.go: the processor's cache misses, where it tells them.
//   - run.go: rounds, in which all lanes take turns; command.go: flags.
//   - report.go, plot.go: ratios, and when there is none; table, JSON, picture.
//
// # What is fair
//
// All lanes run in one process on the same two devices, which have all QPs and MRs from the start: a lane of n uses the first n,
// the others are idle. So lanes differ in nothing but in what they touch, and can take turns every few hundred milliseconds.
// On the in-memory link one thread drives both devices in turn and the rate is by its CPU time, so that other programs on the
// machine, and the distance between two of its cores, do not count; on a veth pair each device has a thread and a CPU of its own.
//
// Every message goes to another QP (or MR) than the one before it, each is signalled, has a QP of its own while it is under
// way, and is acknowledged by a packet of its own; as many are under way in all lanes. So nothing is amortised over a run
// of messages to one QP, unless --burst asks for it.
package scale
