// Package slidingwindow moves blocks from one host's memory to another's by RDMA WRITE with
// immediate and acknowledgments by SEND. It is the mechanism that package statusbyte is compared
// with, after Y. Tu, Y. Han et al., "RDMA Based Performance Optimization on Distributed Database
// Systems: A Case Study with GoldenX", WASA 2021, as Xiao et al. (Appl. Sci. 2024, 14, 7437)
// describe it.
//
// # Mechanism
//
// Both sides have a ring of N blocks. The sender's head counts blocks sent, its tail blocks
// acknowledged; head - tail is at most N. A block is one WRITE with immediate, which contains its
// index and length and consumes a receive of the receiver. The receiver hands blocks over in order.
// They may be released in any order but are acknowledged in the order of the ring: a SEND contains
// the number of blocks released from the first one on. At the sender a separate goroutine, the ACK
// poller, receives these, moves the tail and wakes waiters.
//
// The implementation is optimized: receives are reposted before blocks are handed over,
// acknowledgments are inline and cumulative, no call waits for a completion that it does not need,
// and nothing allocates.
//
// # Misbehaving peers
//
// A sender can write only to the ring. A block out of order, of another length than announced, or
// into an unreleased block, and an ACK of more than was sent or less than before, cause ErrPeer,
// which is final. Different sizes are rejected, with both sides' numbers, before anything is sent.
//
// # Concurrency and progress
//
// A Sender's methods must be called by one goroutine; its ACK poller is another. A Receiver's
// Receive and Poll must be called by one goroutine; Release may be called by any. On a device with
// Manual progress the ACK poller drives the sender's device while blocks are outstanding. The
// receiver's device is driven only by its own calls.
//
// # Reading order
//
// For maintainers:
//
//   - config.go, hello.go: sizes and the agreement on them.
//   - sender.go, poller.go: head and tail.
//   - receiver.go: receives, release in order, acknowledgments.
package slidingwindow
