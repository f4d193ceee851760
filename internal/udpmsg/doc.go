// Package udpmsg sends RoCEv2 packets through UDP sockets, as runs where possible, for packages udp
// and xdp.
//
// A run is a sequence of packets of one flow and of the same length, of which only the last may be
// shorter. The kernel takes it as one message (UDP_SEGMENT) and carries it as one super-frame as
// far as possible. A network driver, a NIC or the receiving socket cuts it into packets.
//
// Reading order:
//
//   - sender.go: Sender, which makes runs of frames and sends them
//   - peers.go: to which peers runs are sent
//   - backlog.go: how much has not left the interface
//   - class.go: the traffic class of a socket
//   - socket.go: sockets that only send
//   - listen.go: sockets that receive and send
//   - connect.go: sockets that are connected to one peer
//   - batch_unsafe.go: messages for sendmmsg(2) and recvmmsg(2)
package udpmsg
