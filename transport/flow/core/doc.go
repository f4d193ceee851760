// Package core is the scheduler of package flow as a pure state machine: tasks with inputs, timers,
// priorities and deadlines. It has no goroutines, clocks, locks or I/O. The caller passes the time,
// in nanoseconds, to every call, so a schedule replays exactly.
//
// # Model
//
// A source produces arrivals: Machine.Push reports those of events and channels, and
// Machine.Advance produces those of timers. A task has inputs, each of which counts the arrivals of
// one source. When the inputs of an idle task are satisfied, the task is activated and queued in
// its pool. Machine.Take returns the task of a pool that runs next: the one with the highest
// priority, and among equals the one that was queued first. A pool bounds how many units of work
// are in progress: functions that run, or parts of messages on a link.
//
// A running task is never interrupted. It may offer preemption points: Machine.Requeue puts it back
// in front of its equals, and the next Take prefers a task with a higher priority.
//
// # Deadlines
//
// A deadline runs from the activation to the end of the task. A task that exceeds it is reported,
// and depending on its Action it continues, starts over or is dropped. Work that is queued never
// delays a task with a higher priority, however late it is.
//
// # Reading order
//
//   - types.go: what callers configure and what the machine reports.
//   - machine.go: building a machine; timers and sources.
//   - input.go: when inputs activate a task, and what they keep.
//   - task.go: the life of a task from its activation to its end.
//   - ready.go: the queues of a pool.
//   - heap.go: the timers.
//   - graph.go: the search for cycles.
package core
