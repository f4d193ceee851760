package loopback

import (
	"context"
	"fmt"
	"net/netip"
	"sync"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
)

// macPrefix begins every Port's MAC: locally administered, then "10.77" and 0.
var macPrefix = [5]byte{0x02, 0x00, 10, 77, 0}

// portMAC is the MAC of the index-th Port.
func portMAC(index int) (m bth.MAC) {
	copy(m[:], macPrefix[:])
	m[5] = byte(index + 1)
	return m
}

// portOf is the index of the Port that a frame is addressed to, or -1.
func portOf(f []byte) int {
	if [5]byte(f) != macPrefix {
		return -1
	}
	return int(f[5]) - 1
}

// network is what a Port knows of IP around it.
type network struct {
	port    *Port
	mu      sync.Mutex
	addrs   []netip.Prefix
	groups  map[netip.Addr]bool
	changed chan struct{}
}

func (n *network) init(p *Port) {
	n.port = p
	n.changed = make(chan struct{}, 1)
	host := byte(p.index + 1)
	// RFC 4291, appendix A: the interface identifier from a MAC.
	m := p.mac
	local := [16]byte{0: 0xfe, 1: 0x80, 8: m[0] ^ 2, 9: m[1], 10: m[2], 11: 0xff, 12: 0xfe, 13: m[3], 14: m[4], 15: m[5]}
	n.addrs = []netip.Prefix{
		netip.PrefixFrom(netip.AddrFrom16(local), 64),
		netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 77, 0, host}), 24),
		netip.PrefixFrom(netip.AddrFrom16([16]byte{0: 0xfd, 1: 0x77, 15: host}), 64),
	}
}

// notify tells whoever listens on Changed.
func (n *network) notify() {
	select {
	case n.changed <- struct{}{}:
	default:
	}
}

// Addrs implements driver.Network: a link-local address, then 10.77.0.1/24 and
// fd77::1/64 for the first Port, .2 and ::2 for the second, unless SetAddrs
// changed them.
func (p *Port) Addrs() []netip.Prefix {
	p.net.mu.Lock()
	defer p.net.mu.Unlock()
	return append([]netip.Prefix(nil), p.net.addrs...)
}

// SetAddrs replaces the Port's addresses, as an administrator would while it
// runs. Any goroutine.
func (p *Port) SetAddrs(a ...netip.Prefix) {
	p.net.mu.Lock()
	p.net.addrs = append([]netip.Prefix(nil), a...)
	p.net.mu.Unlock()
	p.net.notify()
}

// SetMTU changes the MTU, at most to that of Config: longer packets are
// dropped from now on. Any goroutine.
func (p *Port) SetMTU(mtu int) error {
	if most := p.maxFrame - headerLen - vlanLen; mtu < MinMTU || mtu > most {
		return fmt.Errorf("%w: MTU %d, allowed are %d to %d", ErrConfig, mtu, MinMTU, most)
	}
	p.mtu.Store(int64(mtu))
	p.net.notify()
	return nil
}

// SetUp plugs the Port in or out: while it is down, nothing comes or goes.
// Any goroutine.
func (p *Port) SetUp(up bool) {
	p.up.Store(up)
	p.net.notify()
}

// JoinGroup implements driver.Groups. The link floods multicast to all Ports, members or not, as a switch without
// snooping does. Any goroutine.
func (p *Port) JoinGroup(group netip.Addr) error {
	p.net.mu.Lock()
	defer p.net.mu.Unlock()
	if !group.IsMulticast() || p.net.groups[group] {
		return fmt.Errorf("%w: cannot join %v: no multicast address, or joined already", ErrConfig, group)
	}
	if p.net.groups == nil {
		p.net.groups = map[netip.Addr]bool{}
	}
	p.net.groups[group] = true
	return nil
}

// LeaveGroup implements driver.Groups. Any goroutine.
func (p *Port) LeaveGroup(group netip.Addr) error {
	p.net.mu.Lock()
	defer p.net.mu.Unlock()
	if !p.net.groups[group] {
		return fmt.Errorf("%w: not a member of %v", ErrConfig, group)
	}
	delete(p.net.groups, group)
	return nil
}

// Groups lists the groups that the Port is a member of. Any goroutine.
func (p *Port) Groups() (list []netip.Addr) {
	p.net.mu.Lock()
	defer p.net.mu.Unlock()
	for g := range p.net.groups {
		list = append(list, g)
	}
	return list
}

// Changed implements driver.Network.
func (p *Port) Changed() <-chan struct{} { return p.net.changed }

// Resolve implements driver.Network: every Port of the link is a neighbour.
func (p *Port) Resolve(_ context.Context, src, dst netip.Addr) (driver.Hop, error) {
	dst = dst.Unmap()
	mac, err := p.neighbour(dst)
	if err != nil {
		return driver.Hop{}, err
	}
	if src, err = p.source(src.Unmap(), dst); err != nil {
		return driver.Hop{}, err
	}
	return driver.Hop{MAC: mac, Src: src, MTU: int(p.mtu.Load())}, nil
}

func (p *Port) neighbour(dst netip.Addr) (m bth.MAC, err error) {
	if dst.IsMulticast() {
		return multicastMAC(dst), nil
	}
	for _, q := range p.link.ports {
		if q != p && q.has(dst) {
			return q.mac, nil
		}
	}
	if p.has(dst) {
		return m, fmt.Errorf("%w %v but this one: frames to oneself do not cross a wire", ErrNoRoute, dst)
	}
	return m, fmt.Errorf("%w %v", ErrNoRoute, dst)
}

func (p *Port) has(a netip.Addr) bool {
	for _, own := range p.Addrs() {
		if own.Addr() == a.WithZone("") {
			return true
		}
	}
	return false
}

// multicastMAC: RFC 1112 section 6.4 for IPv4, RFC 2464 section 7 for IPv6.
func multicastMAC(a netip.Addr) bth.MAC {
	b := a.AsSlice()
	if n := len(b); n == 16 {
		return bth.MAC{0x33, 0x33, b[12], b[13], b[14], b[15]}
	}
	return bth.MAC{0x01, 0x00, 0x5e, b[1] & 0x7f, b[2], b[3]}
}

// source checks or chooses the local address: of the same family, link-local
// if the destination is, from its network if there is one.
func (p *Port) source(src, dst netip.Addr) (netip.Addr, error) {
	if src.IsValid() && !src.IsUnspecified() {
		if !p.has(src) {
			return src, fmt.Errorf("%w: %v is not an address of this port", ErrNoRoute, src)
		}
		return src, nil
	}
	var best netip.Addr
	for _, own := range p.Addrs() {
		a := own.Addr()
		if a.Is4() != dst.Is4() || a.IsLinkLocalUnicast() != (dst.IsLinkLocalUnicast() || dst.IsLinkLocalMulticast()) {
			continue
		}
		if own.Contains(dst) {
			return a, nil
		}
		if !best.IsValid() {
			best = a
		}
	}
	if !best.IsValid() {
		return best, fmt.Errorf("%w: no local address to reach %v from", ErrNoRoute, dst)
	}
	return best, nil
}
