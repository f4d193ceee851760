// Package device opens a device from what the user of a command has given: an interface, the name
// of a peer, or nothing. It also chooses the GID for a connection.
//
// Reading order:
//   - flags.go: Flags, the flags that commands share, and opening the device
//   - gid.go: GIDIndex chooses a GID
//   - pkey.go: the flag --pkey
//   - transport.go: the flags about lost packets and congestion
//   - class.go: the flags about traffic classes
//   - peer.go: finding the peer and the interface that leads to it
//   - confine.go, limits.go: dropping the privileges of servers; limits of programs
//   - beside.go: the warning about an XDP program beside UDP sockets
//   - watch.go: noticing that the interface was removed or has changed
package device
