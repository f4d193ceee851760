// Package core is the indirect transport's protocol as a pure state machine. It handles both sides
// of the transfers of one connection, without goroutines, sockets, memory or a clock. Its driver
// passes in events with the time, and takes out actions:
//
//   - in: Post, HandleControl, HandleData, DataDone, Registered, HandleTimeout, Fail
//   - out: Poll returns one Action at a time; Timeout returns when HandleTimeout is due
//
// The same calls give the same actions, so a run replays from the seed of its faults. Nothing
// allocates after New, and Config bounds everything.
//
// # Protocol
//
// It is the dynamic RDMA method of Li, Shi, Wang and He (Journal of UESTC 47(5), 2018, doi
// 10.3969/j.issn.1001-0548.2018.05.006) on RoCEv2 packets. A transfer starts with a request that
// carries its ID, type, mode, both base addresses and the length. The responder registers the
// destination and answers: valid, or invalid if it could not.
//
//   - A valid answer: the data goes by RDMA WRITE to the address in the answer (direct).
//   - An invalid answer, or none until the second timeout: the initiator tells its user that the
//     request was taken (the paper's simulated acknowledgment) and sends the data at once into a
//     slot of the responder's indirect buffer, which was granted with the connection (indirect).
//     Requests continue. The real answer is recorded when it arrives, and otherwise ignored.
//   - The responder moves the contents of a slot to the destination when the registration has
//     succeeded and the valid answer has been sent. If both happened before the data arrived, the
//     data is moved on arrival and is never parked.
//   - When the transport has acknowledged all data, the user may reuse the source. When the valid
//     answer is known as well, the initiator asks for the release. The responder grants it when
//     every byte is at its destination. Only then is the transfer done and its slot free.
//
// A READ works in the other direction: the responder sends. It waits for the initiator's
// confirmation of its valid answer. If none arrives until the second timeout it sends anyway. The
// initiator's memory was registered before the request, so no buffer is needed.
//
// The traditional method, the paper's comparison, is the same machine with Config.Dynamic false.
// After an invalid answer or a timeout the initiator waits for its timer and asks again, as often
// as necessary.
//
// # Failures
//
//   - No slot is free: the initiator keeps the data and keeps asking. It sends directly when the
//     answer arrives, or indirectly when a slot becomes free, oldest transfer first. Nothing is
//     lost or overwritten: a slot has one owner until the responder has released it.
//   - Registration never succeeds: after Config.Patience the initiator abandons the transfer and
//     makes the responder drop what is parked. The transfer ends with StatusRefused or
//     StatusNoAnswer.
//   - The peer is silent: while a transfer is unfinished both sides send something eight times per
//     Config.Silence, even if data travels one-sided. An initiator asks a silent responder less and
//     less often. After Silence it probes the responder's NIC with empty RDMA WRITEs. As long as
//     the NIC acknowledges, the responder counts as busy. If it does not, RC ends the connection. A
//     responder waits at most Silence for its initiator (ErrSilent), because memory is at stake. A
//     side whose driver did not run for a while does not count that time against its peer. While no
//     transfer is unfinished, an empty WRITE every three times Silence detects a dead host.
//   - The initiator dies with data parked: its transfers were never done, so nothing was promised.
//     When the connection ends, parked data is dropped and counted (Orphaned), and registered
//     memory is released as undelivered.
//   - A peer violates the rules of the data path (a segment out of order, a slot that is not free):
//     it may have overwritten parked data. Err returns ErrProtocol, and the connection must be
//     closed. The same applies to a peer that keeps sending but does not answer a release for
//     Silence.
//   - Control messages that are malformed, stale or of unknown transfers are counted and dropped.
//
// # Reading order
//
//   - types.go, message.go: the vocabulary, in memory and on the wire.
//   - machine.go: Poll and the timers.
//   - watch.go: liveness of the peer.
//   - initiator.go, responder.go: the two sides.
//   - send.go: the window of data messages that both sides share.
package core
