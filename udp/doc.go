// Package udp is the port on UDP sockets. It moves RoCEv2 packets between user space and the
// network without privileges, on any interface with an IP address, including the loopback
// interface.
//
// [Open] returns a [Port], which implements driver.Port, driver.Network, driver.Groups and
// driver.StatsReader. It binds a socket to UDP port 4791 of each address of an interface, or of the
// addresses that the user has chosen. Two Ports may use different addresses of an interface, for
// example 127.0.0.1 and 127.0.0.2. Opening an address twice fails with driver.ErrBusy.
//
// Programs can share addresses through a node service: the service opens its Port with
// Options.Shared, and each program gets its sockets from the service as a [Provider].
//
// # Packets
//
// Peers see ordinary RoCEv2 packets. The kernel writes the Ethernet, IP and UDP headers and chooses
// route and neighbor. What differs from package xdp:
//
//   - The UDP source port is 4791, so networks with several paths send all packets between two
//     hosts on one of them. The kernel chooses the IPv6 flow label (net.ipv6.auto_flowlabels).
//     PathOptions.SourcePort and FlowLabel of package roce have no effect.
//   - IPv4 packets have DF and identification 0. The identification of received packets is
//     recovered from their ICRC: see frame.Decoder.RecoverIDs and
//     docs/decisions/039-udp-port.md for the remaining strength of the ICRC.
//   - The kernel adds UDP checksums. Received IPv4 packets must have DF, as RoCEv2 requires
//     (annex A17), and no IP options.
//   - Packets to an address arrive whatever the interface on which they come, as for all sockets.
//     Peers on the same host are reachable.
//   - Peers that get packets one by one get a socket that is connected to them, for which the
//     kernel needs less time. Its IPv4 packets count their identification. Received packets have
//     the hop limit of the first one; datagrams have their own.
//   - The kernel's work for each packet costs more than AF_XDP: the rate and the latency are worse.
//
// # Runs
//
// Packets of equal length that Send gets at once for a peer go through the kernel as one run of up
// to 64 packets (UDP_SEGMENT). The kernel may also merge received packets to runs (UDP_GRO), which
// Receive splits. Kernels before 5.0 do not have both, and get single packets, which Info.Note
// says.
//
// Some receivers drop runs, and some NICs cut them into packets whose ICRC is wrong. If packets of
// runs to an address have to be retransmitted often, packets to it are sent one by one for a while.
// Info.Note says so if it continues, and if the kernel refuses runs.
//
// # Receive buffer
//
// The kernel keeps received packets in the receive buffer of the socket, 4 MiB if it permits that.
// Without CAP_NET_ADMIN the limit is sysctl net.core.rmem_max, often 212,992 bytes. It drops
// packets that do not fit, which Stats counts. Info.ReceiveBuffer is the size; package roce limits
// the window accordingly.
//
// # Reading order
//
// For maintainers:
//
//   - open.go: Options and Open
//   - port.go: ownership, counters, Close
//   - socket.go: the options of a socket, and the headers of received packets
//   - receive.go, send.go: the data path
//   - connected.go: sockets for peers that get packets one by one
//   - split.go: the packets of received runs
//   - line.go: runs that are not copied, for an owner that permits overlapping headers
//   - drops_unsafe.go: how many packets the kernel has dropped
//   - wait.go: blocking and waking
//   - network.go: addresses, link state and routes
//   - groups.go: multicast groups
//   - provider.go, shared.go: sockets that another process opens
package udp
