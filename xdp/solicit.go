//go:build linux

package xdp

import (
	"errors"
	"net/netip"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// solicit makes the kernel resolve or verify a neighbor as if it had a packet for it. Without
// CAP_NET_ADMIN, which a program may have dropped after Open, it gives the kernel such a packet.
func (n *network) solicit(ip netip.Addr) error {
	n.count.solicits.Add(1)
	return n.query(func(h *netlink.Handle) error {
		err := h.NeighSet(&netlink.Neigh{
			LinkIndex: n.index, Family: family(ip), State: netlink.NUD_NONE, Flags: netlink.NTF_USE,
			IP: ip.AsSlice(),
		})
		if errors.Is(err, unix.EPERM) {
			err = n.probe.send(n.index, ip)
		}
		return err
	})
}

const (
	discardPort = 9 // RFC 863
	probeBuffer = 1 // receive buffer; the kernel uses its minimum
)

// probeSockets send empty UDP datagrams to neighbors. They have their namespace from the start and
// are bound to the interface by the first send. Neither needs a capability.
type probeSockets struct {
	mu     sync.Mutex
	v4, v6 int // -1 = not open
	bound  bool
}

// open opens the sockets in the network namespace of the calling thread. A socket that cannot be
// opened is missing only when it is needed.
func (s *probeSockets) open() {
	open := func(family int) int {
		fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return -1
		}
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, probeBuffer)
		return fd
	}
	s.v4, s.v6 = open(unix.AF_INET), open(unix.AF_INET6)
}

func (s *probeSockets) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, fd := range []*int{&s.v4, &s.v6} {
		if *fd >= 0 {
			_ = unix.Close(*fd)
		}
		*fd = -1
	}
}

// send sends an empty datagram to the discard port of a neighbor on the interface.
func (s *probeSockets) send(index int, ip netip.Addr) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.bind(index); err != nil {
		return err
	}
	var to unix.Sockaddr
	fd := s.v6
	if ip.Is4() {
		fd, to = s.v4, &unix.SockaddrInet4{Port: discardPort, Addr: ip.As4()}
	} else {
		to = &unix.SockaddrInet6{Port: discardPort, Addr: ip.As16(), ZoneId: uint32(index)}
	}
	err := unix.Sendto(fd, nil, unix.MSG_DONTROUTE, to)
	if errors.Is(err, unix.EAGAIN) {
		return nil // earlier datagrams still wait for the neighbor
	}
	return err
}

func (s *probeSockets) bind(index int) error {
	if s.bound {
		return nil
	}
	for _, fd := range []int{s.v4, s.v6} {
		if fd < 0 {
			continue
		}
		err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX, index)
		if err != nil {
			return err
		}
	}
	s.bound = true
	return nil
}
