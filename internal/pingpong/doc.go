// Package pingpong implements the protocol of rdma-core's example programs ibv_rc_pingpong,
// ibv_uc_pingpong, ibv_ud_pingpong and ibv_srq_pingpong, for a client and for a server.
//
// Both sides exchange the addresses of their queue pairs over TCP, in lines of fixed length. Then
// each side sends a message whenever it has received one, until both have sent and received the
// agreed number. With SRQ this happens on several queue pairs that share a receive queue.
//
// The example programs receive into the buffer that they send from, so their server returns what
// the client sent.
//
// Reading order:
//
//   - session.go: Config, Client and Server.
//   - exchange.go: the addresses of queue pairs and their exchange over TCP.
//   - tcp.go: TCP connections of both sides.
//   - serve.go: Serve accepts clients.
//   - messages.go: the queue pairs and the messages.
package pingpong
