// Package driver defines what a device requires of a network driver, which is called a port.
// Packages xdp (AF_XDP on a network interface), udp (UDP sockets) and loopback (a network in
// memory) implement it. A program that brings its own port implements [Port] and [Network] and
// passes it to roce.New.
//
// A [Port] moves Ethernet frames in buffers ([Buf]) and describes itself in [Info]. Its memory
// belongs to the port: the owner borrows buffers with Alloc and Receive and returns them with Send,
// Free and Release. A [Network] lists the addresses of the interface and finds the next hop ([Hop])
// to a peer.
//
// A port may implement further interfaces: [Holder], [Backlogger], [StatsReader], [Watcher],
// [Finder], [Router], [Groups], [Member], [Limited], [Overlapper] and [RunSender]. A wrapper around
// a port implements [Wrapper], and users look for interfaces with [Find], which also searches the
// inner ports. Exceptions are [Overlapper] and [RunSender]: a wrapper sees all frames, so it must
// implement them itself.
//
// The contract grows by new fields of Buf and Info, whose zero values mean what ports do today, and
// by new optional interfaces. Use field names in composite literals of these types, and do not
// compare Buf values. See docs/decisions/004-port-contract.md.
//
// # Reading order
//
// For maintainers:
//
//   - port.go: Port, Buf, Info, Stats, and the optional interfaces of a port
//   - network.go: Network, Hop, Finder, Router and Groups
//   - errors.go: the errors that ports have in common
//   - member.go: Member, a port that shares an interface with those of other programs; its Limits
//   - find.go: Wrapper and Find, the search for optional interfaces
package driver
