// Package dualport joins the two ports of a node service's own device into one. Frames from and to
// other hosts go through an AF_XDP port. The programs that use the service are on the same host,
// where AF_XDP does not reach them: frames from and to them, and frames of multicast groups, go
// through a UDP port on the same interface.
//
// Reading order:
//   - port.go: Port: sending, receiving and waiting
//   - network.go: addresses, next hops and groups; following the sockets of the UDP port
package dualport
