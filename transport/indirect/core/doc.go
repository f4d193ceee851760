// Package core is the indirect transport's protocol as a pure state machine: both ends of the transfers of one
// connection, without goroutines, sockets, memory or a clock of its own. Whoever drives it hands in what happens, with the
// time, and takes out what is to be done:
//
//   - in: Post, HandleControl, HandleData, DataDone, Registered, HandleTimeout, Fail
//   - out: Poll, one Action at a time; Timeout says when HandleTimeout is due
//
// The same calls give the same actions, so a run replays from the seed of its faults. Nothing here allocates after New, and
// everything is bounded by Config.
//
// # The protocol
//
// It is the dynamic RDMA method of Li, Shi, Wang and He (Journal of UESTC 47(5), 2018, doi 10.3969/j.issn.1001-0548.2018.05.006),
// put on the packets of RoCEv2. A transfer begins with a request that carries its ID, type, mode, both base addresses and its
// length. The responder registers the destination and answers: valid, or invalid if it could not.
//
//   - A valid answer: the data goes by RDMA WRITE to where the answer says (direct).
//   - An invalid answer, or none until the second time-out: the initiator tells its user that the request was taken (the
//     paper's simulated acknowledgement) and sends the data at once into a slot of the responder's indirect buffer, which it was
//     granted when the connection was made (indirect). Requests go on; the real answer is recorded when it comes, and dropped.
//   - The responder moves what lies in a slot to the destination when registration has succeeded and the valid answer has been
//     handed to the wire. Where both had happened before the data came, it is moved as it comes, and parks nowhere.
//   - When all data has been acknowledged by the transport, the source is the user's again. When the valid answer is known, too, the
//     initiator asks for the release; the responder grants it when every byte is in its place. Only then is the transfer done, and its
//     slot free.
//
// A READ is the same backwards: the responder sends. It waits for the initiator's confirmation of its valid answer; if none comes until
// the second time-out it sends anyway. The initiator's memory has been registered before it asked, so no buffer stands in between.
//
// The traditional method, with which the paper compares, is the same machine with Config.Dynamic off: after an invalid answer the initiator
// waits for its timer and asks again, and after a time-out it asks again, as often as it takes.
//
// # When things do not go well
//
//   - No slot is free: the initiator keeps the data and keeps asking. It sends directly when the answer comes, or
//     indirectly when a slot becomes free, oldest transfer first. Nothing is lost and nothing overwritten: a slot
//     has one owner until the responder has released it.
//   - Registration never succeeds: after Config.Patience the initiator gives the transfer up and has the responder drop what is parked. It
//     ends as StatusRefused (or StatusNoAnswer).
//   - The peer says nothing: both ends say something eight times in Config.Silence while a transfer is unfinished, even if data travels one-sided. An
//     initiator whose responder is silent asks it more and more slowly. After Silence an empty RDMA WRITE now and then finds out whether its NIC
//     is there: for as long as that acknowledges, the responder is taken for busy, and waited for; if it does not, RC ends the connection. A
//     responder waits no longer than Silence for its initiator's word (ErrSilent): memory is at stake. Who was held up itself does not count that
//     time against its peer. While nothing is unfinished an empty WRITE every three times Silence is all: a connection to a host that has died does
//     not hold its place for ever.
//   - The initiator dies with data parked: its transfers were never done, so nobody was promised anything. When the connection ends,
//     what is parked is dropped and counted (Orphaned), and what was registered is given back undelivered.
//   - A peer that breaks the rules of the data path (a segment out of order, a slot that is not free) may have overwritten parked
//     data: Err gives ErrProtocol, and the connection has to be torn down. So it has with one that speaks all the time, but for as long as Silence
//     has no word for a release.
//   - Control messages that are malformed, stale or of unknown transfers are counted and dropped.
//
// # Reading order
//
// types.go, message.go: the vocabulary, on the wire and off; machine.go: Poll and the timers; watch.go: who is alive; initiator.go and responder.go: the two
// sides; send.go: the window of data that both share.
package core
