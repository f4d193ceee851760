// Package rdma copies files over connections of transport/rftp. It is what "gorxe send" and "gorxe
// recv" run.
//
// Reading order:
//   - conn.go: a filecopy.Conn of an rftp.Conn
//   - client.go: Client pushes files to a server, or pulls files from it
//   - server.go: Server answers one client
package rdma
