// Package core is the protocol of package rftp as a pure state machine: the source, the sink and
// the control messages of one side of a connection, without goroutines, sockets, memory or a clock.
// Its driver passes in events with the time, and takes out actions:
//
//   - in, from the program: Open, GetFree, Send, End, GetReady, PutReady, RefuseSession,
//     SendMessage, NextMessage, Finish, Abort
//   - in, from the NIC: HandleControl, ControlDone, Posted, WriteDone, QPFailed, Arrived, QPClosed,
//     HandleTimeout
//   - out: Poll returns one Action at a time, Timeout says when HandleTimeout is due, Changed says
//     for which calls the program may stop waiting
//
// The same calls give the same actions, so a run replays from the seed of its faults. The path of a
// block allocates nothing, and Config bounds everything.
//
// # Blocks
//
// The states are those of the paper (Ren et al., Protocols for Wide-Area Data-intensive
// Applications, 2012, section IV.B). A block of the source is free, loading (the program fills it),
// loaded (it waits for a credit), sending (the driver posts the WRITE), waiting (for its
// completion), and free again. A block whose WRITE cannot be posted, or whose QP fails, is loaded
// again and keeps its credit. A block of the sink is free, granted (the source has a credit for
// it), ready (it is complete), and free again when the program has consumed it.
//
// # Credits
//
// A credit names a block of the sink by address and R_Key. [Mode] says when the sink grants blocks.
// The source uses the credit and the free block next that it got last: on a short path, few blocks
// of both pools are in use, and they stay in the caches of the processors. Paper is the paper's
// scheme: up to two grants for each block that arrives, none if no block is free at that time, and
// one for each request of a source without credits, at the latest when a block becomes free. A
// block that becomes free later is announced only after such a request. Proactive, the default,
// grants all blocks at the beginning and each block again as soon as it is free, so a request is
// never necessary.
//
// A WRITE with immediate announces a block when its last byte has arrived (Proactive, OnDemand).
// Otherwise a control message announces it after the WRITE has completed, one round trip later
// (Paper).
//
// # Sessions
//
// A session is a sequence of blocks, such as a file. Opening one needs no answer. Its blocks arrive
// in any order. When the source has ended it and the sink's program has consumed all its blocks,
// the sink reports that it is done. Either side may abort it; blocks in flight still arrive, and
// the sink drops them, so that no address is used twice.
//
// Credits belong to the connection, and blocks get them in the order of Send. With several
// sessions, one whose blocks are not consumed can use at most eight ninths of the credits.
//
// # Failures
//
//   - A data QP fails: the source cannot know which of its blocks have arrived. It tells the sink,
//     which closes its side of the QP, so that nothing more arrives, and reports which blocks are
//     still granted. The source sends these again on other QPs.
//   - The control QP or the last data QP fails: the connection ends.
//   - Nothing comes from the peer for Config.Silence, although both sides send something four times
//     in this interval: ErrSilent. Time during which the driver did not run does not count.
//   - The peer violates the protocol: the connection ends with ErrPeer and says how. Counts and
//     lengths of the peer are checked before anything is allocated for them.
//
// # Reading order
//
//   - types.go, message.go: the vocabulary, in memory and on the wire.
//   - machine.go: Machine, program messages, liveness, the end.
//   - control.go: which control message is sent next.
//   - source.go, sink.go: the two halves.
//   - recover.go: failed data QPs.
//   - queue.go: queues, and windows of sequence numbers.
package core
