// Package xdp is the AF_XDP Port: it takes the RoCEv2 frames of an ordinary Linux interface into user space, and
// puts frames on its wire, while the interface's other traffic goes on through the kernel.
//
// # Reading order
//
//	options.go, errors.go   what a user chooses, and how Open refuses
//	open.go                 how a Port is put together, and every fallback
//	virtio.go               what one driver makes of long frames, and which mode is chosen therefore
//	prog.go                 the XDP program that steers UDP 4791 to the sockets
//	queue.go                a socket with its packet memory (UMEM), per NIC queue
//	ring.go                 the rings shared with the kernel, and their memory order
//	port.go                 the Port: ownership, counters, Close
//	receive.go, send.go     the data path
//	wait.go                 blocking and waking
//	network.go, resolve.go  addresses, link state, routes and neighbours
//	devices.go              what the interfaces of a machine offer
//
// Package veth beside it makes two namespaces joined by a veth pair; package xdpbench measures bare frames.
//
// # What goes where
//
// UDP to port 4791 in IPv4 without options and fragments, or in IPv6 without extension headers, behind at most one
// VLAN tag, goes to the socket of the receive queue that it came in on. Everything else, and these frames too if their queue has
// no socket, goes to the kernel untouched. ARP and neighbour discovery stay the kernel's, so peers find this
// host, and Resolve finds them, without any code of ours.
//
// The program hangs on a BPF link. The kernel removes it when the link's descriptor is closed: by Close, or because the
// process ends, however it ends. An interface that carries an XDP program already is refused, never taken over.
//
// # Modes
//
// Native mode runs the program in the driver, generic mode on the kernel's socket buffers. Auto takes generic mode on
// veth, native elsewhere (virtio, tap and hardware NICs), and generic again where the driver refuses. On a veth, native
// mode would take segmentation offload from the host's own TCP, and its round trip is the longer one. PortInfo.Datapath
// says what came of it: "afxdp-native", "afxdp-generic" or "afxdp-zerocopy".
//
// virtio_net in native mode may drop frames of path MTU 4096 (virtio.go). If the MTU allows them, Auto takes generic mode
// there, and native mode, chosen by name, keeps to path MTU 2048; PortInfo.Note says so.
//
// Attaching in native mode resets the link of some NICs for a moment. A NIC whose driver strips VLAN tags hands over
// tagged frames as untagged ones: switch that off (`ethtool -K IFACE rxvlan off`); Device.StripsVLAN tells.
//
// Bridges, macvlans and VLAN devices are opened like any other interface, in generic mode; on a VLAN device the kernel adds and
// removes the tag, so that Hop.VLAN is always zero here. A peer's frames that are tagged on an interface opened itself are
// received with their tag.
//
// # Frames, chunks and descriptors
//
// Packet memory is mapped outside the Go heap, in chunks of 4096 bytes. The kernel keeps 256 bytes free in front of a received frame, so
// path MTU 4096 does not fit a chunk. With multi-buffer (Linux 6.6) a frame may span chunks; a buffer is then two chunks,
// and the kernel receives into the first ones only: a frame's head piece lies in the first chunk and its short rest is
// copied into the second, right behind the head. Long frames to send lie in both and take two descriptors. The longest frame is
// 7936 bytes, or 3840 without multi-buffer, and PortInfo.MTU says no more than that allows. A received frame that is
// longer is dropped and counted.
//
// By default a queue has 2048 buffers to receive into, and the first queue as many to send from: 16 MiB each. With many queues
// there are fewer, so that a Port stays below 512 MiB.
//
// # Queues
//
// A Port serves all receive queues of its interface, with a socket each, and looks at them in turn. It sends on the first only:
// one thread cannot feed several queues faster than one, and frames that overtake each other on different queues would
// look like loss to a connection.
//
// # Sending
//
// In copy mode, frames are sent inside the system call that kicks the socket, and on a veth the other end's reception runs there too.
// Send kicks until the kernel has taken all, reaping completions when it asks for that. A frame that the kernel takes but cannot
// deliver (peer's queue full, no carrier, larger than the peer's MTU) is counted in TxDropped. While the interface is down, Send drops
// everything and returns ErrLinkDown; at most the frames of the first such call wait in the ring until it is up again.
// Sending and receiving are one thread's business, because poll on a socket in copy mode sends, too.
//
// # Kernels
//
// Linux 5.9 (BPF links for XDP) is needed. 5.18 knows programs that cope with multi-buffer frames, 6.6 sockets that do; 6.3
// tells what drivers offer; 6.17 sends more than 32 descriptors a kick. Capabilities: CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF, and before 5.11 a limit of
// locked memory that can be raised; CAP_SYS_ADMIN to open an interface in another network namespace. Ring indices are
// accessed by sync/atomic only, which orders them on arm64 as on amd64.
package xdp
