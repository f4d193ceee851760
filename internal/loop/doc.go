// Package loop joins one driver.Port to one qp.Engine.
//
// A [Loop] receives frames from the port and hands their packets to the engine, lets the engine
// build packets into the port's transmit buffers, runs the engine's timers, and blocks in the port
// when there is nothing to do. Everything that the engine does not handle itself (packets to QP1,
// the connection manager, asynchronous events) goes to a [Host].
//
// # Ownership
//
// The goroutine that holds the loop's lock is its owner. Only the owner may touch the port, the
// engine and the fields of the loop. With automatic progress the owner is a goroutine that
// [Loop.Start] starts. With manual progress it is whichever caller of [Loop.TryStep] or
// [Loop.Await] takes the lock. [Loop.Drive] changes from the former to the latter for some time.
//
// Other goroutines reach the owner in two ways: by a doorbell, which the engine keeps in a
// lock-free list, and by a command, a function that they pass to [Loop.Do]. Both follow the same
// pattern. The sender publishes its request and then reads the "sleeping" flag. The owner sets the
// flag and then reads what was published. Go's atomic operations are sequentially consistent, so at
// least one side sees the other and no wake-up is lost. A port remembers a Wake that comes before
// Wait.
//
// # Steps
//
// A step is one iteration of the loop: run commands, receive a batch of frames, handle doorbells,
// transmit, and then the background work (timers, host, events). Steps that receive frames may
// postpone the background work.
//
// While QPs of several traffic classes exist, a step transmits only what keeps the backlog below
// its limit, and handles doorbells between packets. When the backlog has drained, the next step is
// due; NextTimeout and the time of a sleep include that.
//
// # Reading order
//
//   - loop.go: the types Loop, Host and Config, and one step
//   - receive.go, transmit.go, trace.go: how frames come in and go out, and how they are traced
//   - join.go, run.go: runs of packets in one piece of memory, which are sent and received
//   - backlog.go: with several traffic classes, the limit on what is queued below the engine
//   - source.go: which addresses datagrams may come from
//   - commands.go, lock.go: how other goroutines reach the owner
//   - sleep.go: when the owner blocks, and for how long
//   - progress.go, drive.go: what runs the steps: the progress goroutine, or callers of Await
//   - linger.go: an owner that must not spin waits briefly for an answer
//   - fault.go: registered memory that cannot be accessed
//   - coalesce.go: receive coalescing: when the receive ring is left alone
//   - counters.go: what the loop counts
//   - tuning.go: all batch sizes, times and thresholds
package loop
