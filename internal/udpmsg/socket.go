package udpmsg

import (
	"golang.org/x/sys/unix"
)

// sendBuffer is the size of the send buffer that sockets ask for.
const sendBuffer = 1 << 20

// OpenSocket opens a socket in the network namespace of the calling thread that only sends, with
// any source address, through the interface with a number. The kernel chooses its source port.
func OpenSocket(index int, v6 bool) (s Socket, err error) {
	family, level := unix.AF_INET, unix.IPPROTO_IP
	options := []struct{ name, value int }{
		{unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE}, {unix.IP_TTL, DefaultHopLimit}}
	var any unix.Sockaddr = &unix.SockaddrInet4{}
	if v6 {
		family, level = unix.AF_INET6, unix.IPPROTO_IPV6
		options = []struct{ name, value int }{
			{unix.IPV6_V6ONLY, 1}, {unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE},
			{unix.IPV6_DONTFRAG, 1}, {unix.IPV6_UNICAST_HOPS, DefaultHopLimit}}
		any = &unix.SockaddrInet6{}
	}
	s = Socket{Index: index}
	if s.FD, err = unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK,
		0); err != nil {
		return s, err
	}
	defer func() {
		if err != nil {
			_ = unix.Close(s.FD)
		}
	}()
	for _, o := range options {
		if err = unix.SetsockoptInt(s.FD, level, o.name, o.value); err != nil {
			return s, err
		}
	}
	if err = s.discard(); err != nil {
		return s, err
	}
	_ = unix.SetsockoptInt(s.FD, unix.SOL_SOCKET, unix.SO_SNDBUF, sendBuffer)
	// Kernels before 4.18 do not have it.
	s.Runs = unix.SetsockoptInt(s.FD, unix.SOL_UDP, unix.UDP_SEGMENT, 0) == nil
	if err = unix.Bind(s.FD, any); err != nil {
		return s, err
	}
	name, err := unix.Getsockname(s.FD)
	switch a := name.(type) {
	case *unix.SockaddrInet4:
		s.Port = uint16(a.Port)
	case *unix.SockaddrInet6:
		s.Port = uint16(a.Port)
	}
	return s, err
}

// discard makes the kernel drop all packets to the socket.
func (s *Socket) discard() error {
	drop := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K}
	return unix.SetsockoptSockFprog(s.FD, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: 1, Filter: &drop})
}
