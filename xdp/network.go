package xdp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/gorxe/gorxe/driver"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// network is the state of the interface and of the IP network around it. A watcher goroutine
// follows the kernel's notifications and publishes snapshots.
type network struct {
	index    int
	handle   *netlink.Handle   // requests, in the interface's namespace
	events   *nl.NetlinkSocket // notifications, in the interface's namespace
	limit    limit
	own      *ownAddrs // the addresses that the XDP program redirects
	state    atomic.Pointer[state]
	groups   membership
	probe    probeSockets
	changed  chan struct{}
	finished chan struct{} // closed when the watcher has ended; nil if it never ran

	mu     sync.RWMutex // held for writing while handle is closed
	closed bool         // guarded by mu
}

// limit returns how much of an IP MTU the Port can use, and a text for Info.Note.
type limit func(mtu int) (use int, note string)

// state is a snapshot. It is not modified after it was published.
type state struct {
	info  driver.Info
	addrs []netip.Prefix
	gone  bool
}

// newNetwork opens the netlink sockets in the namespace of the calling thread. It subscribes to
// notifications before anything is read, so that no change is missed.
func newNetwork() (*network, error) {
	n := &network{changed: make(chan struct{}, 1),
		limit: func(mtu int) (int, string) { return mtu, "" }}
	var err error
	n.events, err = nl.Subscribe(unix.NETLINK_ROUTE,
		unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH,
		unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
		unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("subscribe to link and address changes: %w", err)
	}
	if n.handle, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		n.events.Close()
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	n.probe.open()
	if err = n.groups.open(); err != nil {
		n.close()
		return nil, err
	}
	return n, nil
}

// watch starts the watcher, which runs until close.
func (n *network) watch() {
	n.finished = make(chan struct{})
	go func() {
		defer close(n.finished)
		for {
			msgs, _, err := n.events.Receive()
			switch {
			case errors.Is(err, unix.ENOBUFS): // notifications were lost: read everything
				n.refresh()
				n.notify()
			case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
			case err != nil:
				return
			default:
				n.handleMessages(msgs)
			}
		}
	}()
}

func (n *network) handleMessages(msgs []syscall.NetlinkMessage) {
	refresh, notify := false, false
	for i := range msgs {
		m := &msgs[i]
		switch m.Header.Type {
		case unix.RTM_NEWLINK, unix.RTM_DELLINK, unix.RTM_NEWADDR, unix.RTM_DELADDR:
			refresh = refresh || n.concerns(m)
		case unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH:
			notify = notify || n.concerns(m)
		case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
			notify = true
		}
	}
	if refresh {
		n.refresh()
	}
	if refresh || notify {
		n.notify()
	}
}

// concerns reports whether a message is about the Port's interface. Link, address and neighbor
// messages have the interface index in their second 32-bit word.
func (n *network) concerns(m *syscall.NetlinkMessage) bool {
	return len(m.Data) >= 8 && binary.NativeEndian.Uint32(m.Data[4:]) == uint32(n.index)
}

func (n *network) notify() {
	select {
	case n.changed <- struct{}{}:
	default:
	}
}

// refresh reads link and addresses and publishes a snapshot. If reading fails although the
// interface exists, the old snapshot remains.
func (n *network) refresh() {
	next := *n.state.Load()
	l, err := n.handle.LinkByIndex(n.index)
	if err != nil {
		if errors.As(err, new(netlink.LinkNotFoundError)) {
			next.info.Up, next.gone = false, true
			n.state.Store(&next)
		}
		return
	}
	n.describe(&next.info, l.Attrs())
	addrs, err := n.readAddrs(l)
	if err != nil {
		addrs.usable = next.addrs
	}
	// Addresses that the program does not redirect are not offered as GIDs.
	if next.addrs, err = n.own.setHosts(addrs.usable, next.info.MAC); err != nil {
		next.info.Note = joinNotes(next.info.Note, err.Error())
	}
	next.gone = false
	n.state.Store(&next)
}

func joinNotes(a, b string) string {
	if a == "" {
		return b
	}
	return a + "; " + b
}

// describe sets the fields of info that may change while the Port is open.
func (n *network) describe(info *driver.Info, a *netlink.LinkAttrs) {
	info.Name = a.Name
	info.MTU, info.Note = n.limit(a.MTU)
	info.MaxFrame = info.MTU + etherLen + vlanLen
	info.Up = running(a)
	copy(info.MAC[:], a.HardwareAddr)
}

// running reports whether the interface is administratively up and has a link.
func running(a *netlink.LinkAttrs) bool {
	const want = unix.IFF_UP | unix.IFF_LOWER_UP
	return a.RawFlags&want == want
}

// addresses are the addresses of an interface. A tentative IPv6 address becomes usable after
// duplicate address detection.
type addresses struct {
	usable    []netip.Prefix
	tentative bool
}

// readAddrs lists the addresses in the order of the GID table.
func (n *network) readAddrs(l netlink.Link) (a addresses, err error) {
	list, err := n.handle.AddrList(l, netlink.FAMILY_ALL)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return a, fmt.Errorf("list addresses: %w", err)
	}
	var groups [3][]netip.Prefix
	for i := range list {
		x := &list[i]
		ip, ok := netip.AddrFromSlice(x.IP)
		ones, _ := x.Mask.Size()
		if !ok {
			continue
		}
		if x.Flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) != 0 {
			a.tentative = a.tentative || x.Flags&unix.IFA_F_DADFAILED == 0
			continue
		}
		ip = ip.Unmap()
		g := 2
		switch {
		case ip.Is6() && ip.IsLinkLocalUnicast():
			g = 0
		case ip.Is4():
			g = 1
		}
		groups[g] = append(groups[g], netip.PrefixFrom(ip, ones))
	}
	for _, g := range groups {
		a.usable = append(a.usable, g...)
	}
	return a, nil
}

// query runs a netlink request on behalf of any goroutine, unless the Port is closed.
func (n *network) query(f func(h *netlink.Handle) error) error {
	n.mu.RLock()
	defer n.mu.RUnlock()
	if n.closed {
		return ErrClosed
	}
	return f(n.handle)
}

// close ends the watcher and closes the sockets.
func (n *network) close() {
	n.groups.close()
	n.probe.close()
	n.events.Close()
	if n.finished != nil {
		<-n.finished
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.closed {
		n.closed = true
		n.handle.Close()
	}
}

// Addrs lists the interface's addresses: link-local IPv6 addresses first, then IPv4, then other
// IPv6. It omits addresses that duplicate address detection has not approved. The slice is shared
// and must not be modified. Addrs is safe for concurrent use.
func (p *Port) Addrs() []netip.Prefix { return p.net.state.Load().addrs }

// Changed returns a channel that receives a value after a change of the interface's addresses,
// link, MTU or neighbors, or of any route. One value may report several changes.
func (p *Port) Changed() <-chan struct{} { return p.net.changed }
