// Package slidingwindow moves blocks from one host's memory to another's by RDMA WRITE with immediate and acknowledgements by SEND:
// the mechanism that package statusbyte is measured against, after Y. Tu, Y. Han et al., "RDMA Based Performance Optimization on
// Distributed Database Systems: A Case Study with GoldenX", WASA 2021, as Xiao et al. (Appl. Sci. 2024, 14, 7437) describe it.
//
// # The mechanism
//
// Both ends have N blocks, used as a ring. The sender's head counts blocks that were sent, its tail those that were acknowledged; head - tail
// is at most N. A block travels as one WRITE with immediate, which names its place and length and consumes a receive that
// the receiver has posted. The receiver hands blocks over in order; they may be released in any order, but are acknowledged in the order of
// the ring: a SEND tells how many have been released from the first one on. At the sender a goroutine of its own, the ACK poller,
// does nothing but take these, move the tail, and wake who waits for room.
//
// It is done as well as it can be: receives are reposted before blocks are handed over, acknowledgements are inline and
// cumulative, so a burst of releases needs one; nothing waits for a completion that it does not need; nothing allocates.
//
// # What a wrong peer can do
//
// A sender can write to the ring, nothing else. A block out of turn, of another length than announced, or into a block
// that has not been released, and an ACK of more than was sent or less than before, are ErrPeer, for good. Different sizes at the two
// ends are refused with both ends' numbers before anything is sent.
//
// # Concurrency and progress
//
// A Sender belongs to one goroutine; its ACK poller is another. Of a Receiver, Receive and Poll belong to one goroutine, Release may
// be called from any. With a device of Manual progress the ACK poller drives the sender's while anything is under way, so that what was sent
// arrives whatever the program does; the receiver's is driven by its own calls alone.
//
// # Reading order
//
//   - config.go, hello.go: sizes, and how the two ends agree
//   - sender.go, poller.go: head and tail
//   - receiver.go: receives, release in order, acknowledgements
package slidingwindow
