// Package uverbs implements the kernel interface of RDMA verbs, /dev/infiniband/uverbs0, on a
// roce.Device. Programs that use libibverbs with its provider rxe run unmodified on it. The caller
// intercepts the programs' calls and passes them to a [Context].
//
// # Objects
//
// A [Device] stands for the character device, and a [Context] for one open file of it. Commands
// arrive as ioctls ([Context.Ioctl]) or writes ([Context.Write]). They create objects of package
// roce. The file that the program gets ([Context.FD]) is memory for the queues, which the program
// maps at offsets that the commands return.
//
// # Queues
//
// The program posts work requests to rings and polls completions from rings. Work requests are
// taken from the ring by the loop's owner (qp.Source): sends after the doorbell, a write to the
// file, and receives when a packet needs one. Completions are moved to the ring at the end of each
// step.
//
// # Memory
//
// Registered memory stays in the program. The engine works on a copy, which is mapped lazily
// (mr.Backing). It is loaded when a work request or an answer reads it. Stores of a step are
// collected, and written before acknowledgments leave and before completions become visible. Those
// of a WRITE come from the received frames and do not touch the copy. The last aligned word of each
// message of a WRITE becomes visible last. Atomics are atomic among peers, not with respect to
// atomic instructions of the program.
// docs/decisions/041-memory-of-other-processes.md explains why.
//
// # Hostile programs
//
// The program may change rings at any time and pass any parameters. Sizes and own indices are kept
// outside of the shared memory, each value is read once, and a step takes at most one ring of work
// requests. The limits are constants: maxObjects, maxRings, maxMirror, maxSpaces, maxChannels and
// maxContexts. TestHostile runs such programs; "make hostile" runs more of them.
//
// Reading order:
//
//   - device.go, context.go: Device and Context; the end of a step; handles; errors
//   - abi.go, ioctl.go, command.go: how calls are decoded; the table of commands
//   - query.go: attributes of the device, the port and the GID table
//   - file.go, ring_unsafe.go: shared memory and rings
//   - space.go, transfer.go, maps.go, maps_unsafe.go: memory of the program
//   - memory.go, window.go: PDs and MRs; memory windows
//   - cq.go, channel.go: CQs; completion channels and asynchronous events
//   - resources.go: descriptions of objects
//   - doorbell.go: doorbells that are not intercepted
//   - crowd.go: no spinning while programs need the CPU
//   - qp.go, transition.go, wqe.go: QPs, the rules of MODIFY_QP, and work requests
//   - srq.go, ah.go: SRQs; address handles
package uverbs
