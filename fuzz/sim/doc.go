// Package sim runs complete gorxe devices against each other in virtual time, one random scenario
// per seed, and checks everything that they do.
//
// A scenario has two roce.Devices on a loopback link: real frames with real headers and ICRCs pass
// through the real decoder, engine and encoder. The seed decides how many connections there are, of
// which type (RC, UC, UD), over which addresses and path MTUs; which operations they post, of which
// sizes, from how many pieces; what the link does to the frames (loss, duplication, reordering,
// corruption, delay, jitter, pauses, bottlenecks with short queues and ECN); whether a connection
// uses selective repeat or go-back-N, and how it reacts to congestion; when a host is too busy to
// run; when a region is deregistered while packets are in flight; and which side breaks which rule.
//
// What must always hold:
//
//   - every work request completes once, in order, with the right status;
//   - data arrives intact: a model of every byte of registered memory is compared with it;
//   - the last bytes of a WRITE never become visible before the rest of it and earlier WRITEs;
//   - atomics happen exactly once;
//   - no byte changes outside a granted range, or after the grant ended;
//   - nothing hangs: everything completes, and all traffic ends, within a bound of virtual time;
//   - the counters of devices and link match.
//
// The same seed gives the same scenario, frame by frame. A failure replays with
//
//	go test ./fuzz/sim -run 'TestSim$' -sim.seed=N -sim.trace
//
// # Reading order
//
//   - scenario.go, network.go, classes.go: what a seed decides.
//   - world.go: the clock, the two hosts, one step after another.
//   - memory.go: regions, their model and their borders.
//   - conn.go: the life of a connection.
//   - post.go: what it posts.
//   - receive.go: its receives.
//   - complete.go: checks of completions.
//   - visible.go: checks of the memory model.
//   - window.go: memory windows.
//   - crime.go: errors on purpose.
//   - check.go: what must hold at the end.
//   - trace.go: what a replay prints.
//   - goodput.go: a steady stream, measured, for the table of goodput by loss.
package sim
