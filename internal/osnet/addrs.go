package osnet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	// An interface that just came up has tentative IPv6 addresses for a second or two.
	addrPatience = 3 * time.Second
	addrPause    = 50 * time.Millisecond
	// addrReads limits how often the list is read while addresses change.
	addrReads = 5
)

// Addresses are the addresses of an interface. A tentative IPv6 address becomes usable after
// duplicate address detection.
type Addresses struct {
	Usable    []netip.Prefix // link-local IPv6 addresses first, then IPv4, then other IPv6
	Tentative bool           // there are tentative addresses
}

// ReadAddrs lists the addresses of an interface for which use returns true.
func ReadAddrs(h *netlink.Handle, l netlink.Link, use func(netip.Addr) bool) (
	a Addresses, err error) {
	list, err := h.AddrList(l, netlink.FAMILY_ALL)
	for i := 1; i < addrReads && errors.Is(err, netlink.ErrDumpInterrupted); i++ {
		list, err = h.AddrList(l, netlink.FAMILY_ALL) // the list may be incomplete
	}
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return a, fmt.Errorf("list addresses: %w", err)
	}
	var groups [3][]netip.Prefix
	for i := range list {
		x := &list[i]
		ip, ok := netip.AddrFromSlice(x.IP)
		ones, _ := x.Mask.Size()
		ip = ip.Unmap()
		if !ok || !use(ip) {
			continue
		}
		if x.Flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) != 0 {
			a.Tentative = a.Tentative || x.Flags&unix.IFA_F_DADFAILED == 0
			continue
		}
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
		a.Usable = append(a.Usable, g...)
	}
	return a, nil
}

// AwaitAddrs calls read until there are usable addresses. It waits for duplicate address detection,
// at most 3 seconds. If there are no addresses then, it returns none and no error.
func AwaitAddrs(read func() (Addresses, error)) ([]netip.Prefix, error) {
	for deadline := time.Now().Add(addrPatience); ; time.Sleep(addrPause) {
		a, err := read()
		if err != nil || len(a.Usable) > 0 || !a.Tentative || time.Now().After(deadline) {
			return a.Usable, err
		}
	}
}

// Running reports whether an interface is administratively up and has a link.
func Running(a *netlink.LinkAttrs) bool {
	const want = unix.IFF_UP | unix.IFF_LOWER_UP
	return a.RawFlags&want == want
}

// AddrsOf returns the addresses of an interface of this process's network namespace, without zones;
// none if they cannot be read.
func AddrsOf(i *net.Interface) (list []netip.Addr) {
	addrs, _ := i.Addrs()
	for _, p := range addrs {
		if n, ok := p.(*net.IPNet); ok {
			a, _ := netip.AddrFromSlice(n.IP)
			list = append(list, a.Unmap())
		}
	}
	return list
}

// MainName returns the name of the interface that name, or an alternative name, stands for. It
// returns other texts, such as addresses, as they are.
func MainName(name string) string {
	if l, err := netlink.LinkByName(name); err == nil {
		return l.Attrs().Name
	}
	return name
}
