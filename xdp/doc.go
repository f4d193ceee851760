// Package xdp is the AF_XDP port. It moves the RoCEv2 frames of a Linux network interface between
// the interface and user space. All other traffic of the interface stays with the kernel.
//
// Programs use it by roce.Open, with options in roce.XDPOptions. They need the sections on modes,
// on which frames go where, and on requirements. This package alone is for tools that move frames
// themselves, or that put another port between this one and the device. On other operating systems
// than Linux the package has only the options and errors, so that programs with XDPOptions build.
//
// [Open] returns a [Port], which implements driver.Port, driver.Network, driver.Groups,
// driver.Holder and driver.Backlogger. [Interfaces] describes the interfaces of the machine and
// says which of them can be opened. Subpackage veth creates two network namespaces joined by a veth
// pair, and subpackage xdpbench measures bare frames.
//
// # Which frames go where
//
// UDP packets to port 4791 of this interface go to the AF_XDP socket of the receive queue on which
// they arrived, if all of the following is true:
//
//   - The destination address is an address of the interface and the destination MAC is the
//     interface's, or they are those of a multicast group that was joined with JoinGroup. The Port
//     follows changes of addresses and MAC.
//   - The frame is untagged, or has a priority tag (VLAN ID 0).
//   - The packet is IPv4 without options and fragments, or IPv6 without extension headers.
//
// All other frames go to the kernel unchanged, for example packets that the host forwards as a
// router or bridge and frames of VLAN devices on the interface. So do RoCE frames on a queue
// without a socket. ARP and neighbor discovery remain with the kernel.
//
// A Port receives on at most 1024 addresses of each IP version.
//
// The XDP program is attached by a BPF link. The kernel detaches it when the link is closed: by
// Close, or when the process ends for any reason. Open refuses an interface that already has an XDP
// program.
//
// # Modes
//
// In native mode the program runs in the driver, in generic mode on the kernel's socket buffers.
// Auto selects generic mode on veth, native mode elsewhere, and generic mode again if the driver
// refuses. On a veth, native mode would disable segmentation offload for the host's own TCP, and
// its round trip takes longer. Info.Datapath is the result: "afxdp-native", "afxdp-generic" or
// "afxdp-zerocopy".
//
// virtio_net in native mode may drop frames of path MTU 4096 (see virtio.go). If the MTU allows
// such frames, Auto selects generic mode. Native mode, if requested, is then limited to path MTU
// 2048, and Info.Note says so.
//
// Attaching in native mode resets the link of some NICs for a moment. If a driver strips VLAN tags,
// the program cannot see them, and takes tagged frames for untagged ones. To keep VLANs apart, turn
// that off with `ethtool -K IFACE rxvlan off`. Interface.StripsVLAN reports such drivers.
//
// Bridges, macvlans and VLAN devices work like other interfaces, in generic mode. To use a VLAN,
// open its VLAN device: the kernel adds and removes the tag, so Hop.VLAN is always zero.
//
// # Buffers
//
// Packet memory is outside the Go heap, in chunks of 4096 bytes. The kernel keeps 256 bytes free
// before a received frame, so a frame of path MTU 4096 does not fit in a chunk. With multi-buffer
// (Linux 6.6) a frame may span chunks. A buffer then has two chunks, and the kernel receives into
// the first one only: the first part of a long frame stays there, and the short rest is copied to
// the second chunk, directly after the first part. Long frames to send are in both chunks and take
// two descriptors. The longest frame has 7936 bytes, or 3840 without multi-buffer. Info.MTU is
// limited accordingly. Longer received frames are dropped and counted, unless they are runs.
//
// By default a queue has 2048 receive buffers, and the first queue has as many send buffers: 16 MiB
// each. With many queues the numbers shrink so that a port uses at most 512 MiB.
//
// # Runs of packets
//
// UDP sockets can send several packets of one flow as one frame of up to 64 KiB (UDP_SEGMENT), and
// GRO merges received packets in the same way. All packets of such a run have the same length; only
// the last may be shorter. Over a veth, and into a virtual machine, runs travel uncut. In generic
// mode, Receive splits them. It copies each packet to a buffer of its own, with headers. The kernel
// does not tell the length of the packets, so Receive looks for the one with which the ICRC of the
// first packet is correct. Runs without such a length are dropped and counted. Without multi-buffer
// (before Linux 6.6) only runs of up to 3840 bytes arrive. In native mode runs never arrive,
// because the kernel cuts them before.
//
// # Neighbors and routes
//
// Resolve asks the kernel for a route and for one entry of the neighbor table. The Port remembers
// the next hops that it has found and follows the kernel's notifications about them, so Find costs
// nothing until one of them changes. Notifications about other neighbors and routes are ignored.
// Stale neighbors are verified, because the kernel does not see the Port's traffic. The number of
// lookups and of ARP and neighbor discovery requests per second is limited, whatever other hosts
// do.
//
// # Queues
//
// A port serves all receive queues of the interface, with one socket per queue, and polls them in
// turn. It sends only on the first queue. One thread gains nothing from several queues, and frames
// that overtake each other on different queues would look like loss.
//
// # Sending
//
// In copy mode the system call that kicks the socket sends the frames; on a veth it also runs the
// receive path of the peer. Send repeats the call until the kernel has taken all frames. Frames
// that the kernel takes but cannot deliver are counted in Stats.TxDropped: the peer's queue is
// full, there is no carrier, or the frame exceeds the peer's MTU. While the interface is down, Send
// drops all frames and returns ErrLinkDown; at most the frames of the first such call stay in the
// ring until the interface is up again.
//
// One thread both sends and receives, because poll on a socket in copy mode also sends.
//
// With Options.Runs, generic mode sends runs of at least 4 packets and 8 KiB, or of 32 packets, of
// equal length to one address through a UDP socket, as one super-frame. So it does with all other
// frames to that address in the same call of Send, so that the order stays. Shorter runs go through
// the ring, and all frames of an owner that asks for the backlog. See package udp for peers that do
// not receive runs.
//
// # Backlog
//
// Port.Backlog counts the bytes of frames that Send has put in the transmit ring and whose
// descriptors the kernel has not put in the completion ring. What that means depends on the mode:
//
//   - Zero-copy: the driver completes a frame after the NIC has reported that it was sent.
//   - Native and generic mode, which copy frames to socket buffers: the kernel completes a frame
//     when its socket buffer is freed. Drivers of NICs do this after the NIC has reported that the
//     frame was sent.
//   - veth in both modes: when the peer's kernel has processed the frame, usually before Send
//     returns. The backlog is then 0, and frames wait in the peer's receive ring.
//   - tap, and virtio_net without NAPI for transmission: at once. The backlog is always 0.
//   - Bridges, macvlans and VLAN devices: these pass frames on to another interface and its
//     queueing discipline, and frames are completed there. On other interfaces, AF_XDP sends past
//     the queueing discipline.
//
// NICs report frames late and several at a time, because they limit the rate of interrupts
// (ethtool -c, tx-usecs and tx-frames). The backlog is then larger than what is really queued.
//
// # Requirements
//
// Linux 5.9 is required (BPF links for XDP). Newer kernels add support: 5.18 for XDP programs that
// accept multi-buffer frames, 6.3 for querying XDP features, 6.6 for multi-buffer sockets, 6.17 for
// sending more than 32 descriptors per system call.
//
// The process needs CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF, and CAP_IPC_LOCK or a limit of locked
// memory (ulimit -l) that is large enough for the packet memory. Before Linux 5.11 it also needs
// CAP_SYS_RESOURCE, and to open an interface in another network namespace CAP_SYS_ADMIN.
//
// An open Port needs no capabilities, except CAP_BPF before Linux 6.0 if unprivileged BPF is
// disabled. Without CAP_NET_ADMIN, Resolve makes the kernel resolve a neighbor by sending it an
// empty UDP datagram to the discard port.
//
// # Reading order
//
// For maintainers:
//
//   - options.go, errors.go: the options of Open and its errors
//   - open.go: how a Port is set up, with all fallbacks
//   - virtio.go: how virtio_net treats long frames, and the choice of the mode
//   - prog.go: the XDP program that redirects RoCE frames to the sockets
//   - own.go: the addresses whose packets the program redirects
//   - queue.go: the AF_XDP socket and the packet memory of one NIC queue
//   - ring.go, ring_unsafe.go: the rings shared with the kernel and their memory order
//   - port.go: ownership, counters, Close
//   - receive.go, refill.go, send.go: the data path
//   - bulk.go, send_runs.go: long runs, which go through UDP sockets
//   - run.go, length.go: how received runs are split into packets
//   - backlog.go: what the kernel has not sent yet
//   - wait.go: blocking and waking
//   - network.go, watch.go, rtnl.go: addresses, link state and routes, and how they are followed
//   - resolve.go, neighbors.go, solicit.go: next hops
//   - groups.go: multicast groups
//   - interfaces.go, genl.go: descriptions of the interfaces of the machine
package xdp
