// Package statusbyte moves blocks from one host's memory to another's by one-sided operations alone, after D. Xiao, H. Yi,
// W. Zhang, W. Shen: "Status-Byte-Assisted RDMA Transmission Mechanism for Optimizing Multi-Task Video Streaming in Edge
// Computing", Appl. Sci. 2024, 14, 7437.
//
// # The mechanism
//
// The sender has N send blocks, the receiver N receive blocks, of a size chosen at start. Three arrays of status bytes
// tell what they hold:
//
//   - the first, at the sender, of its send blocks: 0 empty, 1 has data (until the NIC needs it no more);
//   - the second, at the sender: what it knows of the receive blocks;
//   - the third, at the receiver, of the receive blocks: 0 empty, 1 has data, 2 unavailable.
//
// A block travels as two linked WRITEs in one post: the data, which completes nothing, then the status byte 1 into the
// third array, inline and signalled. RC keeps them in order, so who sees the byte sees the data. The receiver polls its
// array, hands the block over and sets the byte to 0, or to 2 for a block that it keeps for a while: the sender goes round that
// one. Only when the sender knows of no empty receive block does it synchronise: one RDMA READ fetches the whole third array
// into the second. That READ is posted ahead of need, so that whoever sends next finds it done: from 16 KiB on in front of
// the WRITEs into the last empty block, whose data keeps wire and receiver busy meanwhile; with smaller blocks Send posts it behind them. A
// stream of Posts of smaller blocks waits for its WRITEs first, since a READ on their heels would be answered before the receiver has
// looked at them.
//
// So the receiver posts no receives, sends nothing, and knows nothing of its sender but the memory it wrote to.
//
// # Blocks
//
// A block begins with [HeaderLen] bytes: device number (1 byte), packet number (2 bytes, big endian, wraps), flags (1 byte,
// see [FlagLast]), length of the data (4 bytes, big endian). The paper has the first two; the others let streams have any length
// and an end. Up to 256 devices share one queue pair: they fill through one path, one at a time; the receiver tells them
// apart by device number, hands each device's packets over in the order of their numbers, and counts gaps and duplicates.
//
// # What a wrong peer can do
//
// Its writes reach the blocks and the array, nothing else. Status values other than 0 to 2, block headers that cannot be, devices that nobody
// registered: each is counted (Stats) and costs the one block, which is empty again afterwards. Different sizes at the two ends
// are refused with both ends' numbers before anything is sent.
//
// # Reading order
//
//   - config.go, hello.go: sizes, and how the two ends agree on them
//   - block.go: a block's header
//   - sender.go, post.go: filling and sending; synchronising
//   - receiver.go, scan.go, order.go: receiving; each device's packets in order
//   - store.go: a directory for each device
//
// # Concurrency
//
// A Sender's methods may be called from any goroutine: fills run side by side, sending is one at a time. A Receiver's Receive
// and Poll belong to one goroutine; Release and Retain may be called from any.
//
// # Manual progress
//
// With a device of Manual progress whoever calls drives it, and nobody else does. Send makes one turn; if that is needed for something else, a
// repetition for example, what was posted leaves in a later turn, and so does whatever the wire has lost. So a program
// that goes on to do something else (wait for its own input, compute) calls Flush before, or Device.Progress all the while. A receiver that
// nobody polls answers nobody: its sender waits, and in the end its retries run out.
package statusbyte
