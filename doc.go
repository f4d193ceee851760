// Package gorxe is the root of a module that contains a software RDMA NIC in pure Go. It speaks
// standard RoCEv2, so its peers can be hardware NICs, the Linux kernel's rxe, and other programs
// that use this module. This package has no code; choose one of those below.
//
// # Packages for programs
//
//   - [github.com/gorxe/gorxe/roce] is the verbs API: devices, memory regions, queue pairs, work
//     requests, completions, and connections that are compatible with rdma_cm.
//   - [github.com/gorxe/gorxe/roce/messenger] exchanges messages and calls, and reads and writes
//     memory of the peer, with contexts and without verbs.
//   - [github.com/gorxe/gorxe/roce/rsocket] provides net.Conn and net.Listener over RDMA,
//     compatible with the rsockets of librdmacm.
//   - [github.com/gorxe/gorxe/loopback] is a network in memory, for tests on any machine: with
//     loss, reordering and delay from a seed, in real or virtual time.
//   - [github.com/gorxe/gorxe/transport/flow] sends data with priorities and deadlines.
//   - [github.com/gorxe/gorxe/transport/rftp] transfers large blocks into memory of the peer.
//   - [github.com/gorxe/gorxe/transport/statusbyte],
//     [github.com/gorxe/gorxe/transport/slidingwindow] and
//     [github.com/gorxe/gorxe/transport/indirect] are message layers from research papers.
//
// # Packages for drivers and tools
//
//   - [github.com/gorxe/gorxe/driver] is what a device needs of a network: implement driver.Port to
//     run it over something new.
//   - [github.com/gorxe/gorxe/xdp] is the driver for Linux network interfaces, over AF_XDP.
//   - [github.com/gorxe/gorxe/udp] is the driver on UDP sockets, which needs no privileges.
//   - [github.com/gorxe/gorxe/bth] and [github.com/gorxe/gorxe/frame] encode and decode RoCEv2
//     packets and their frames.
//   - [github.com/gorxe/gorxe/roce/cm] is the connection manager's protocol,
//     [github.com/gorxe/gorxe/qp] the protocol of queue pairs, and [github.com/gorxe/gorxe/mr] the
//     access to memory. They have no goroutines, clocks or sockets.
//
// The command is github.com/gorxe/gorxe/cmd/gorxe.
//
// # A first program
//
// This program needs no network interface and no rights. Two devices are joined by a link in
// memory; one reads the other's memory:
//
//	link, err := loopback.NewLink(loopback.Config{})
//	...
//	server, err := roce.New(link.Port(0))
//	client, err := roce.New(link.Port(1))
//
// The example of this package is the whole program. Instead, roce.Open("eth0") opens a device on a
// network interface, and roce.Open("127.0.0.1") one for programs on the same host.
//
// # Learning more
//
// docs/guide.md is a tutorial, from verbs to a replicated key-value store; the folder examples has
// its programs and others. docs/migrating.md lists the calls of libibverbs and librdmacm beside
// those of this module. ARCHITECTURE.md explains how the module works inside.
package gorxe
