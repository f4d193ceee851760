// Package rping implements the protocol of rping, the ping program of rdma-core, as client and as
// server. The sides connect by rdma_cm. For each ping, the client announces its source buffer in a
// SEND, and the server READs it and answers by a SEND. The client then announces its sink buffer,
// and the server WRITEs the text there and answers again. The client compares the two texts.
//
// Reading order:
//   - wire.go: the messages
//   - side.go: what both sides have in common
//   - client.go, server.go: the two sides
package rping
