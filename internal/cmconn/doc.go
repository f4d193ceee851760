// Package cmconn exchanges short messages with a peer over a reliable queue pair that the
// connection manager (rdma_cm) connects. Each message is one SEND. A Conn probes a peer that is
// silent for long, so that a peer whose host has died does not keep it waiting forever.
//
// Reading order:
//   - conn.go: Conn, its memory and its connection
//   - message.go: sending, receiving and probing
package cmconn
