package udp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/internal/udpmsg"
	"golang.org/x/sys/unix"
)

// socket is a socket that is bound to UDP port 4791 of one address: an address of the interface, or
// a multicast group.
type socket struct {
	fd     int
	addr   netip.Addr
	gid    bth.GID
	group  bool
	buffer int  // size of the receive buffer, bytes
	runs   bool // the kernel cuts and merges runs
	// segment is the length of the packets of the latest run; 0: none came recently.
	segment int
	class   *udpmsg.Class // of sent packets
	header  []byte        // the headers of received packets, with what is the same in all of them
}

// receiveBuffer is the size of the receive buffer that sockets ask for. Without CAP_NET_ADMIN they
// get at most net.core.rmem_max.
const receiveBuffer = 4 << 20

// openSocket opens a socket in the network namespace of the calling thread. index is the number of
// the interface.
func openSocket(a netip.Addr, index int) (_ *socket, err error) {
	family := unix.AF_INET6
	if a.Is4() {
		family = unix.AF_INET
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open a UDP socket: %w", err)
	}
	s := &socket{fd: fd, addr: a, gid: bth.GIDFromAddr(a), group: a.IsMulticast()}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if err := s.configure(index); err != nil {
		return nil, fmt.Errorf("configure a UDP socket: %w", err)
	}
	if err := unix.Bind(fd, sockaddr(a, index)); errors.Is(err, unix.EADDRINUSE) {
		return nil, fmt.Errorf("%w: another program receives on UDP port %d of %v: if it is a gorxe "+
			"device, close it or choose another address; if it is the kernel's rxe, unload it "+
			"with `rmmod rdma_rxe`", driver.ErrBusy, bth.Port, a)
	} else if err != nil {
		return nil, fmt.Errorf("bind UDP port %d of %v: %w", bth.Port, a, err)
	}
	s.class = udpmsg.NewClass(fd, a.Is6())
	s.makeHeader()
	return s, nil
}

func sockaddr(a netip.Addr, index int) unix.Sockaddr {
	if a.Is4() {
		return &unix.SockaddrInet4{Port: bth.Port, Addr: a.As4()}
	}
	s := &unix.SockaddrInet6{Port: bth.Port, Addr: a.As16()}
	if scoped(a) {
		s.ZoneId = uint32(index)
	}
	return s
}

// scoped reports whether an IPv6 address needs the number of an interface.
func scoped(a netip.Addr) bool {
	return a.Is6() && (a.IsLinkLocalUnicast() || a.IsLinkLocalMulticast())
}

// option is an integer option of a socket.
type option struct{ level, name, value int }

// configure sets the options of a socket before it is bound. With the mode PROBE of path MTU
// discovery the kernel sets DF and identification 0, and ignores path MTUs that ICMP reports.
func (s *socket) configure(index int) error {
	options := []option{
		{unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE},
		{unix.IPPROTO_IP, unix.IP_RECVTOS, 1},
		{unix.IPPROTO_IP, unix.IP_RECVTTL, 1},
		{unix.IPPROTO_IP, unix.IP_TTL, udpmsg.DefaultHopLimit},
		{unix.IPPROTO_IP, unix.IP_MULTICAST_TTL, udpmsg.DefaultHopLimit},
	}
	if s.addr.Is6() {
		options = []option{
			{unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1},
			{unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE},
			{unix.IPPROTO_IPV6, unix.IPV6_DONTFRAG, 1},
			{unix.IPPROTO_IPV6, unix.IPV6_RECVTCLASS, 1},
			{unix.IPPROTO_IPV6, unix.IPV6_RECVHOPLIMIT, 1},
			{unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, udpmsg.DefaultHopLimit},
			{unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, udpmsg.DefaultHopLimit},
			{unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_IF, index},
			// RoCEv2 senders set no UDP checksum, because the ICRC covers the same bytes.
			{unix.IPPROTO_UDP, unix.UDP_NO_CHECK6_RX, 1},
		}
	}
	if s.group { // several devices of a host may be in a group
		options = append(options, option{unix.SOL_SOCKET, unix.SO_REUSEADDR, 1})
	}
	for _, o := range options {
		if err := unix.SetsockoptInt(s.fd, o.level, o.name, o.value); err != nil {
			return err
		}
	}
	if s.addr.Is4() {
		if err := unix.SetsockoptIPMreqn(s.fd, unix.IPPROTO_IP, unix.IP_MULTICAST_IF,
			&unix.IPMreqn{Ifindex: int32(index)}); err != nil {
			return err
		}
	}
	if unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer) != nil {
		_ = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer)
	}
	// Kernels before 5.0 do not have both.
	s.runs = unix.SetsockoptInt(s.fd, unix.SOL_UDP, unix.UDP_SEGMENT, 0) == nil &&
		unix.SetsockoptInt(s.fd, unix.SOL_UDP, unix.UDP_GRO, 1) == nil
	s.buffer, _ = unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUF)
	if s.group {
		return s.join(index)
	}
	return nil
}

// join makes the host a member of the socket's group. The socket receives only packets to the
// group that arrive on the interface.
func (s *socket) join(index int) error {
	if s.addr.Is4() {
		_ = unix.SetsockoptInt(s.fd, unix.IPPROTO_IP, unix.IP_MULTICAST_ALL, 0)
		return unix.SetsockoptIPMreqn(s.fd, unix.IPPROTO_IP, unix.IP_ADD_MEMBERSHIP,
			&unix.IPMreqn{Multiaddr: s.addr.As4(), Ifindex: int32(index)})
	}
	_ = unix.SetsockoptInt(s.fd, unix.IPPROTO_IPV6, ipv6MulticastAll, 0)
	return unix.SetsockoptIPv6Mreq(s.fd, unix.IPPROTO_IPV6, unix.IPV6_JOIN_GROUP,
		&unix.IPv6Mreq{Multiaddr: s.addr.As16(), Interface: uint32(index)})
}

const ipv6MulticastAll = 29 // IPV6_MULTICAST_ALL

func (s *socket) close() { _ = unix.Close(s.fd) }

// Lengths and offsets of headers. Frames have no VLAN tag, because the kernel adds and removes
// tags.
const (
	etherLen = 14
	ipv4Len  = 20
	ipv6Len  = 40
	udpLen   = 8
	protoUDP = 17
	dontFrag = 0x4000
)

// makeHeader prepares the headers of received packets.
func (s *socket) makeHeader() {
	h := make([]byte, udpmsg.LenV6)
	a := s.addr.As16()
	if s.group {
		copy(h, multicastMAC(s.addr))
	}
	ip := h[etherLen:]
	if s.addr.Is4() {
		h = h[:udpmsg.LenV4]
		binary.BigEndian.PutUint16(h[12:], udpmsg.EtherIPv4)
		ip[0] = 4<<4 | ipv4Len/4
		binary.BigEndian.PutUint16(ip[6:], dontFrag)
		ip[9] = protoUDP
		copy(ip[16:20], a[12:])
	} else {
		binary.BigEndian.PutUint16(h[12:], udpmsg.EtherIPv6)
		ip[0] = 6 << 4
		ip[6] = protoUDP
		copy(ip[24:40], a[:])
	}
	binary.BigEndian.PutUint16(h[len(h)-udpLen+2:], bth.Port)
	s.header = h
}

// multicastMAC maps a multicast address to an Ethernet address (RFC 1112, section 6.4; RFC 2464,
// section 7).
func multicastMAC(a netip.Addr) []byte {
	b := a.As16()
	if a.Is4() {
		return []byte{0x01, 0x00, 0x5e, b[13] & 0x7f, b[14], b[15]}
	}
	return []byte{0x33, 0x33, b[12], b[13], b[14], b[15]}
}
