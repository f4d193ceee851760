// Package service lets several programs share one interface, with one address and one UDP port
// 4791. One process, the service, opens the interface and listens on a unix socket. Each program
// that joins it, a member, gets a slot and runs an engine of its own in its own process.
//
// [New] and [Server.Start] start a service on a port of packages udp or xdp. [Join] returns a
// [MemberPort], the port of a member. docs/decisions/042-node-service.md explains the design.
//
// # Who receives a packet
//
// The QPNs of a member begin with its slot. For each address the service opens a UDP socket per
// member, all bound to the same address and port (SO_REUSEPORT), and passes it to the member. A
// classic BPF program selects the socket by the top byte of the destination QPN, so that data flows
// between kernel and member without another process. Each socket has a filter for its own slot,
// which the member cannot remove.
//
// Packets to QP1 reach the service. It passes the messages of the connection manager to the member
// whose slot is the top byte of the communication ID, or which listens on the service ID, through a
// socket pair that the member gets when it joins.
//
// # Protocol
//
// The unix socket is of the type SOCK_SEQPACKET. A message is a JSON object of at most MaxMessage
// bytes. Those of the server have at most one descriptor; the server takes none. The report of a
// member and the status of the service are in several messages. The server trusts nothing that a
// member sends.
// When the socket closes, the slot, the sockets and the listeners of the member are released.
//
// # Reading order
//
// For maintainers:
//
//   - protocol.go: messages and limits
//   - wire.go: sending and receiving messages and descriptors
//   - paths.go, find.go: where sockets are
//   - lock.go: who may start or end the service at a path
//   - route.go: which member gets a message of the connection manager
//   - program.go: the classic BPF programs
//   - group.go: the sockets of an address
//   - server.go: New, Start, Close, and members as a whole
//   - session.go: the connection to one member
//   - network.go: what the server tells members about the network
//   - will.go: what is sent for a member that has died
//   - report.go: the status of a service
//   - log.go: what is logged about members
//   - client.go: the connection of a member to its service
//   - member.go: Join and MemberPort
package service
