// Package statusbyte moves blocks from one host's memory to another's with one-sided operations
// only, after D. Xiao, H. Yi, W. Zhang, W. Shen: "Status-Byte-Assisted RDMA Transmission Mechanism
// for Optimizing Multi-Task Video Streaming in Edge Computing", Appl. Sci. 2024, 14, 7437.
//
// # Mechanism
//
// The sender has N send blocks and the receiver N receive blocks. Three arrays of status bytes
// describe them:
//
//   - the first, at the sender, describes its send blocks: 0 empty, 1 has data or is still in use
//     by the NIC;
//   - the second, at the sender, is its view of the receive blocks;
//   - the third, at the receiver, describes the receive blocks: 0 empty, 1 has data, 2 unavailable.
//
// A block is sent as two linked WRITEs in one post: the data, unsignaled, and then the status byte
// 1 into the third array, inline and signaled. RC keeps their order, so a receiver that sees the
// byte sees the data. The receiver polls its array, hands the block to the program and sets the
// byte to 0, or to 2 while it keeps the block. The sender skips unavailable blocks. Only when the
// sender's view has no empty receive block does it synchronize: one RDMA READ fetches the third
// array into the second. The READ is posted early. With blocks of 16 KiB and more it precedes the
// WRITEs into the last empty block, whose data keeps the link and the receiver busy meanwhile. With
// smaller blocks Send posts it after them, and a sequence of Posts waits for its WRITEs first,
// because a READ right after them would be answered before the receiver has scanned them.
//
// The receiver posts no receives and sends nothing. It knows only the memory that its sender
// writes.
//
// # Blocks
//
// A block begins with [HeaderLen] bytes: device number (1 byte), packet number (2 bytes, big
// endian, wraps around), flags (1 byte, see [FlagLast]), data length (4 bytes, big endian). The
// paper has the first two fields. The others allow streams of any length. Up to 256 devices share
// one queue pair. The receiver delivers each device's packets in the order of their numbers and
// counts gaps and duplicates.
//
// # Misbehaving peers
//
// A peer's writes reach only the blocks and the array. Status values other than 0 to 2, impossible
// block headers and unregistered devices are counted (see ReceiverStats) and cost one block, which
// is empty again afterwards. Different sizes are rejected, with both sides' numbers, before
// anything is sent.
//
// A Receiver sends nothing. So it does not notice that its sender was killed or that the sender's
// host is gone: Receive waits until its ctx ends, and the memory is in use until Close. A program
// that needs to know it limits the time of Receive, and its sender sends at least an empty packet
// in that time.
//
// # Concurrency
//
// A Sender's methods may be called from any goroutine: fills run concurrently, sending is
// serialized. A Receiver's Receive and Poll must be called by one goroutine. Release and Retain may
// be called by any.
//
// # Manual progress
//
// A device with Manual progress is driven only by calls. Send drives it for one step. If that step
// is used for something else, such as a retransmission, the block leaves in a later step. A program
// that stops calling the Sender must call Flush first, or Device.Progress repeatedly. A receiver
// that is not polled does not acknowledge, and its sender's retries run out.
//
// # Reading order
//
// For maintainers:
//
//   - config.go, hello.go: sizes and the agreement on them.
//   - block.go: a block's header.
//   - sender.go, post.go: filling, sending and synchronizing.
//   - receiver.go, scan.go, order.go: receiving; each device's packets in order.
//   - store.go: a directory for each device.
//   - shelf.go, part.go: one directory; a file that has not appeared yet.
//   - disk.go: syncing files in the background.
//   - resume.go: continuing after an earlier run.
package statusbyte
