//go:build linux

package xdp

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"
)

// membership holds the sockets through which the kernel joins multicast groups. The kernel then
// sends reports (IGMP, MLD), answers queriers and sets the NIC's filter. The sockets receive
// nothing, because they are not bound to a port.
type membership struct {
	mu     sync.Mutex
	v4, v6 int // -1 = not open
}

// open opens the sockets in the network namespace of the calling thread. It succeeds without IPv6.
func (m *membership) open() error {
	m.v4, m.v6 = -1, -1
	var err error
	if m.v4, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
		m.v4 = -1
		return fmt.Errorf("open a socket for multicast: %w", err)
	}
	if m.v6, err = unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
		m.v6 = -1
	}
	return nil
}

func (m *membership) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, fd := range []*int{&m.v4, &m.v6} {
		if *fd >= 0 {
			_ = unix.Close(*fd)
		}
		*fd = -1
	}
}

// change joins or leaves a group. The options are IP_ADD_MEMBERSHIP and IPV6_JOIN_GROUP or their
// opposites.
func (m *membership) change(index int, a netip.Addr, opt4, opt6 int) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case !a.IsMulticast():
		return fmt.Errorf("%w: %v is not a multicast address", ErrOptions, a)
	case m.v4 < 0:
		return ErrClosed
	case a.Is4():
		return unix.SetsockoptIPMreqn(m.v4, unix.IPPROTO_IP, opt4,
			&unix.IPMreqn{Multiaddr: a.As4(), Ifindex: int32(index)})
	case m.v6 < 0:
		return fmt.Errorf("%w: the kernel does not support IPv6", ErrUnsupported)
	}
	return unix.SetsockoptIPv6Mreq(m.v6, unix.IPPROTO_IPV6, opt6,
		&unix.IPv6Mreq{Multiaddr: a.As16(), Interface: uint32(index)})
}

// JoinGroup makes the host a member of a multicast group on the interface; see driver.Groups. The
// kernel allows 20 IPv4 groups per Port (sysctl net.ipv4.igmp_max_memberships). JoinGroup is safe
// for concurrent use.
func (p *Port) JoinGroup(group netip.Addr) error {
	group = group.Unmap().WithZone("")
	err := p.net.groups.change(p.net.index, group, unix.IP_ADD_MEMBERSHIP, unix.IPV6_JOIN_GROUP)
	switch {
	case err == nil:
		if err = p.net.own.addGroup(group); err == nil {
			return nil
		}
		_ = p.net.groups.change(p.net.index, group, unix.IP_DROP_MEMBERSHIP,
			unix.IPV6_LEAVE_GROUP)
	case errors.Is(err, unix.ENOBUFS):
		return fmt.Errorf("join %v: %w; leave other groups, or raise sysctl net.ipv4.igmp_max_memberships", group, err)
	}
	return fmt.Errorf("join %v: %w", group, err)
}

// LeaveGroup ends a membership; see driver.Groups. It is safe for concurrent use.
func (p *Port) LeaveGroup(group netip.Addr) error {
	group = group.Unmap().WithZone("")
	if err := p.net.groups.change(p.net.index, group, unix.IP_DROP_MEMBERSHIP,
		unix.IPV6_LEAVE_GROUP); err != nil {
		return fmt.Errorf("leave %v: %w", group, err)
	}
	p.net.own.removeGroup(group)
	return nil
}
