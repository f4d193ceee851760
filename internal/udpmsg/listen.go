package udpmsg

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"golang.org/x/sys/unix"
)

// Listener is a socket that is bound to UDP port 4791 of one address: an address of an interface,
// or a multicast group. It receives and sends.
type Listener struct {
	FD     int
	Buffer int  // size of the receive buffer, bytes
	Runs   bool // the kernel cuts and merges runs
}

// receiveBuffer is the size of the receive buffer that sockets ask for. Without CAP_NET_ADMIN they
// get at most net.core.rmem_max.
const receiveBuffer = 4 << 20

// Listen opens a socket in the network namespace of the calling thread. index is the number of the
// interface. If shared is true, other sockets of the same user may be bound to the same address
// (SO_REUSEPORT). Sockets of multicast groups always may. The error wraps driver.ErrBusy if the
// address is in use.
func Listen(a netip.Addr, index int, shared bool) (Listener, error) {
	return ListenWith(a, index, shared, func(int) error { return nil })
}

// ListenWith is Listen. It calls prepare with the descriptor before the socket is bound, and
// therefore before it receives packets.
func ListenWith(a netip.Addr, index int, shared bool, prepare func(fd int) error) (l Listener,
	err error) {
	family := unix.AF_INET6
	if a.Is4() {
		family = unix.AF_INET
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return l, fmt.Errorf("open a UDP socket: %w", err)
	}
	defer func() {
		if err != nil {
			_ = unix.Close(fd)
		}
	}()
	if err := configure(fd, a, index, shared); err != nil {
		return l, fmt.Errorf("configure a UDP socket: %w", err)
	}
	if err := prepare(fd); err != nil {
		return l, fmt.Errorf("configure a UDP socket: %w", err)
	}
	if err := unix.Bind(fd, sockaddr(a, index)); errors.Is(err, unix.EADDRINUSE) {
		return l, fmt.Errorf("%w: another program receives on UDP port %d of %v (`ss -uanp sport = "+
			":%[2]d` lists it): if it is a gorxe device or a program of a node service, end it or "+
			"choose another address; if it is the kernel's rxe, unload it with `rmmod rdma_rxe`",
			driver.ErrBusy, bth.Port, a)
	} else if err != nil {
		return l, fmt.Errorf("bind UDP port %d of %v: %w", bth.Port, a, err)
	}
	return Adopt(fd), nil
}

// Adopt describes a socket that Listen has opened, perhaps in another process. It raises the
// receive buffer if it may.
func Adopt(fd int) Listener {
	growBuffer(fd)
	l := Listener{FD: fd}
	_, err := unix.GetsockoptInt(fd, unix.SOL_UDP, unix.UDP_GRO)
	l.Runs = err == nil // kernels from 5.0 on
	l.Buffer, _ = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF)
	return l
}

// growBuffer raises the receive buffer. The kernel doubles the value.
func growBuffer(fd int) {
	if n, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF); err == nil &&
		n >= 2*receiveBuffer {
		return
	}
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer)
	}
}

func sockaddr(a netip.Addr, index int) unix.Sockaddr {
	if a.Is4() {
		return &unix.SockaddrInet4{Port: bth.Port, Addr: a.As4()}
	}
	s := &unix.SockaddrInet6{Port: bth.Port, Addr: a.As16()}
	if Scoped(a) {
		s.ZoneId = uint32(index)
	}
	return s
}

// Scoped reports whether an IPv6 address needs the number of an interface.
func Scoped(a netip.Addr) bool {
	return a.Is6() && (a.IsLinkLocalUnicast() || a.IsLinkLocalMulticast())
}

// option is an integer option of a socket.
type option struct{ level, name, value int }

// configure sets the options of a socket before it is bound. With the mode PROBE of path MTU
// discovery the kernel sets DF and identification 0, and ignores path MTUs that ICMP reports.
func configure(fd int, a netip.Addr, index int, shared bool) error {
	options := []option{
		{unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE},
		{unix.IPPROTO_IP, unix.IP_RECVTOS, 1},
		{unix.IPPROTO_IP, unix.IP_RECVTTL, 1},
		{unix.IPPROTO_IP, unix.IP_TTL, DefaultHopLimit},
		{unix.IPPROTO_IP, unix.IP_MULTICAST_TTL, DefaultHopLimit},
	}
	if a.Is6() {
		options = []option{
			{unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1},
			{unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE},
			{unix.IPPROTO_IPV6, unix.IPV6_DONTFRAG, 1},
			{unix.IPPROTO_IPV6, unix.IPV6_RECVTCLASS, 1},
			{unix.IPPROTO_IPV6, unix.IPV6_RECVHOPLIMIT, 1},
			{unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, DefaultHopLimit},
			{unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, DefaultHopLimit},
			{unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_IF, index},
			// RoCEv2 senders set no UDP checksum, because the ICRC covers the same bytes.
			{unix.IPPROTO_UDP, unix.UDP_NO_CHECK6_RX, 1},
		}
	}
	switch {
	case a.IsMulticast(): // several devices of a host may be in a group
		options = append(options, option{unix.SOL_SOCKET, unix.SO_REUSEADDR, 1})
	case shared:
		options = append(options, option{unix.SOL_SOCKET, unix.SO_REUSEPORT, 1})
	}
	for _, o := range options {
		if err := unix.SetsockoptInt(fd, o.level, o.name, o.value); err != nil {
			return err
		}
	}
	if a.Is4() {
		if err := unix.SetsockoptIPMreqn(fd, unix.IPPROTO_IP, unix.IP_MULTICAST_IF,
			&unix.IPMreqn{Ifindex: int32(index)}); err != nil {
			return err
		}
	}
	// Kernels before 5.0 do not have both.
	if unix.SetsockoptInt(fd, unix.SOL_UDP, unix.UDP_SEGMENT, 0) == nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_UDP, unix.UDP_GRO, 1)
	}
	if a.IsMulticast() {
		return joinGroup(fd, a, index)
	}
	return nil
}

// joinGroup makes the host a member of the socket's group. The socket receives only packets to the
// group that arrive on the interface.
func joinGroup(fd int, a netip.Addr, index int) error {
	if a.Is4() {
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MULTICAST_ALL, 0)
		return unix.SetsockoptIPMreqn(fd, unix.IPPROTO_IP, unix.IP_ADD_MEMBERSHIP,
			&unix.IPMreqn{Multiaddr: a.As4(), Ifindex: int32(index)})
	}
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, ipv6MulticastAll, 0)
	return unix.SetsockoptIPv6Mreq(fd, unix.IPPROTO_IPV6, unix.IPV6_JOIN_GROUP,
		&unix.IPv6Mreq{Multiaddr: a.As16(), Interface: uint32(index)})
}

const ipv6MulticastAll = 29 // IPV6_MULTICAST_ALL
