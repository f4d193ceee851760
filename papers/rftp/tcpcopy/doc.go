// Package tcpcopy copies a file over TCP in two ways, for comparison with copies over RDMA:
//
//   - Like GridFTP in its extended block mode: blocks with an offset and a length travel over
//     several streams, from a buffer to a buffer. Memory to memory is possible, too.
//   - With io.Copy over one stream: the sender uses sendfile, and the receiver splice.
//
// # Reading order
//
//   - tcpcopy.go: what both ways have in common, and who sends what first.
//   - blocks.go: blocks over several streams.
//   - stream.go: io.Copy.
package tcpcopy
