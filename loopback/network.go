package loopback

import (
	"context"
	"fmt"
	"net/netip"
	"sync"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
)

// macPrefix is the start of every Port's MAC: locally administered, then 10, 77 and 0.
var macPrefix = [5]byte{0x02, 0x00, 10, 77, 0}

// portMAC returns the MAC of a Port.
func portMAC(index int) (m bth.MAC) {
	copy(m[:], macPrefix[:])
	m[5] = byte(index + 1)
	return m
}

// portOf returns the index of the Port to which a frame is addressed, or -1.
func portOf(f []byte) int {
	if [5]byte(f) != macPrefix {
		return -1
	}
	return int(f[5]) - 1
}

// network is a Port's view of the IP network.
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
	// Interface identifier derived from the MAC (RFC 4291, appendix A).
	m := p.mac
	local := [16]byte{0: 0xfe, 1: 0x80, 8: m[0] ^ 2, 9: m[1], 10: m[2], 11: 0xff, 12: 0xfe,
		13: m[3], 14: m[4], 15: m[5]}
	n.addrs = []netip.Prefix{
		netip.PrefixFrom(netip.AddrFrom16(local), 64),
		netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 77, 0, host}), 24),
		netip.PrefixFrom(netip.AddrFrom16([16]byte{0: 0xfd, 1: 0x77, 15: host}), 64),
	}
}

// notify signals Changed.
func (n *network) notify() {
	select {
	case n.changed <- struct{}{}:
	default:
	}
}

// Addrs implements driver.Network. By default the first Port has a link-local address, 10.77.0.1/24
// and fd77::1/64, the second .2 and ::2, and so on. SetAddrs changes them.
func (p *Port) Addrs() []netip.Prefix {
	p.net.mu.Lock()
	defer p.net.mu.Unlock()
	return append([]netip.Prefix(nil), p.net.addrs...)
}

// SetAddrs replaces the Port's addresses. It is safe for concurrent use.
func (p *Port) SetAddrs(a ...netip.Prefix) {
	p.net.mu.Lock()
	p.net.addrs = append([]netip.Prefix(nil), a...)
	p.net.mu.Unlock()
	p.net.notify()
}

// SetMTU changes the MTU to at most that of Config. Longer packets are dropped from now on. It is
// safe for concurrent use.
func (p *Port) SetMTU(mtu int) error {
	if most := p.maxFrame - headerLen - vlanLen; mtu < MinMTU || mtu > most {
		return fmt.Errorf("%w: MTU is %d, want %d to %d", ErrConfig, mtu, MinMTU, most)
	}
	p.mtu.Store(int64(mtu))
	p.net.notify()
	return nil
}

// SetUp sets the link state. While it is down, no frame is sent or received. It is safe for
// concurrent use.
func (p *Port) SetUp(up bool) {
	p.up.Store(up)
	p.net.notify()
}

// JoinGroup implements driver.Groups. The link delivers multicast frames to all Ports, members or
// not, like a switch without multicast snooping. It is safe for concurrent use.
func (p *Port) JoinGroup(group netip.Addr) error {
	p.net.mu.Lock()
	defer p.net.mu.Unlock()
	if !group.IsMulticast() || p.net.groups[group] {
		return fmt.Errorf("%w: cannot join %v: it is not a multicast address, or was joined before",
			ErrConfig, group)
	}
	if p.net.groups == nil {
		p.net.groups = map[netip.Addr]bool{}
	}
	p.net.groups[group] = true
	return nil
}

// LeaveGroup implements driver.Groups. It is safe for concurrent use.
func (p *Port) LeaveGroup(group netip.Addr) error {
	p.net.mu.Lock()
	defer p.net.mu.Unlock()
	if !p.net.groups[group] {
		return fmt.Errorf("%w: not a member of %v", ErrConfig, group)
	}
	delete(p.net.groups, group)
	return nil
}

// Groups returns the groups that the Port has joined, in no particular order. It is safe for
// concurrent use.
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

// Resolve implements driver.Network. Every Port of the link is a neighbor.
func (p *Port) Resolve(_ context.Context, src, dst netip.Addr) (driver.Hop, error) {
	dst = dst.Unmap()
	mac, err := p.neighbor(dst)
	if err != nil {
		return driver.Hop{}, err
	}
	if src, err = p.source(src.Unmap(), dst); err != nil {
		return driver.Hop{}, err
	}
	return driver.Hop{MAC: mac, Src: src, MTU: int(p.mtu.Load())}, nil
}

func (p *Port) neighbor(dst netip.Addr) (m bth.MAC, err error) {
	if dst.IsMulticast() {
		return multicastMAC(dst), nil
	}
	for _, q := range p.link.ports {
		if q != p && q.has(dst) {
			return q.mac, nil
		}
	}
	if p.has(dst) {
		return m, fmt.Errorf("%w %v except this port, which cannot send to itself", ErrNoRoute, dst)
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

// multicastMAC implements RFC 1112, section 6.4, and RFC 2464, section 7.
func multicastMAC(a netip.Addr) bth.MAC {
	b := a.AsSlice()
	if n := len(b); n == 16 {
		return bth.MAC{0x33, 0x33, b[12], b[13], b[14], b[15]}
	}
	return bth.MAC{0x01, 0x00, 0x5e, b[1] & 0x7f, b[2], b[3]}
}

// source checks or selects the local address. A selected address has the IP version of dst, is
// link-local if dst is, and preferably has a prefix that contains dst.
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
		if a.Is4() != dst.Is4() ||
			a.IsLinkLocalUnicast() != (dst.IsLinkLocalUnicast() || dst.IsLinkLocalMulticast()) {
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
		return best, fmt.Errorf("%w: no local address can reach %v", ErrNoRoute, dst)
	}
	return best, nil
}
