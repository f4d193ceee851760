package udp

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/gorxe/gorxe/driver"
	"golang.org/x/sys/unix"
)

// maxGroups limits the groups of a Port. Each has a socket.
const maxGroups = 64

// Errors of JoinGroup and LeaveGroup.
var (
	errNotMulticast = errors.New("not a multicast address")
	errJoined       = errors.New("the port is a member already")
	errNotJoined    = errors.New("the port is not a member")
)

// JoinGroup makes the host a member of a multicast group on the interface; see driver.Groups.
func (p *Port) JoinGroup(group netip.Addr) error {
	group = group.Unmap().WithZone("")
	if err := p.join(group); err != nil {
		return fmt.Errorf("join %v: %w", group, err)
	}
	return nil
}

func (p *Port) join(group netip.Addr) error {
	n := p.net
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case !group.IsMulticast():
		return errNotMulticast
	case n.closed:
		return driver.ErrClosed
	case n.groups[group] != nil:
		return errJoined
	case len(n.groups) == maxGroups:
		return fmt.Errorf("more than %d multicast groups: leave some", maxGroups)
	}
	s, err := n.open(group)
	if errors.Is(err, unix.ENOBUFS) {
		return fmt.Errorf("%w: leave other groups, or raise sysctl net.ipv4.igmp_max_memberships",
			err)
	}
	if err != nil {
		return err
	}
	if !p.change(func(old []*socket) []*socket { return append(slices.Clone(old), s) }) {
		s.close()
		return driver.ErrClosed
	}
	n.groups[group] = s
	return nil
}

// LeaveGroup ends a membership; see driver.Groups.
func (p *Port) LeaveGroup(group netip.Addr) error {
	group = group.Unmap().WithZone("")
	n := p.net
	n.mu.Lock()
	defer n.mu.Unlock()
	s := n.groups[group]
	if s == nil {
		return fmt.Errorf("leave %v: %w", group, errNotJoined)
	}
	delete(n.groups, group)
	p.change(func(old []*socket) []*socket {
		return slices.DeleteFunc(slices.Clone(old), func(o *socket) bool { return o == s })
	})
	return nil
}
