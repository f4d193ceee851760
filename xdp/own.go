//go:build linux

package xdp

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/gorxe/gorxe/bth"
)

const (
	// Limits of the addresses that a Port receives on, for each IP version.
	maxAddrs  = 1024
	maxGroups = 1024

	macLen     = 6
	ownLen     = macLen + 2 // a value of the maps: the MAC and padding
	ipv4KeyLen = 4
	ipv6KeyLen = 16

	// The value of the map of first addresses: the MAC of the interface, IPv4 addresses, IPv6
	// addresses.
	first4    = 4
	first6    = 2
	first4Off = ownLen
	first6Off = first4Off + first4*ipv4KeyLen
	firstLen  = first6Off + first6*ipv6KeyLen
)

// Unused slots for first addresses hold loopback addresses, which the kernel never accepts from an
// interface.
var unused4, unused6 = netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()

// ownAddrs holds the addresses whose packets the XDP program redirects: the interface's unicast
// addresses with its MAC, and the groups that were joined with their multicast MACs. The program
// reads them from three maps, so changes take effect at once: an array with the first few addresses
// of the interface, for speed, and hash maps with all addresses and groups.
type ownAddrs struct {
	first, v4, v6 *ebpf.Map

	mu         sync.Mutex
	firstValue [firstLen]byte // what first contains
	hosts      map[netip.Addr]bth.MAC
	groups     map[netip.Addr]bool
	closed     bool
}

func newOwnAddrs() (*ownAddrs, error) {
	o := &ownAddrs{hosts: map[netip.Addr]bth.MAC{}, groups: map[netip.Addr]bool{}}
	for _, m := range []struct {
		to   **ebpf.Map
		spec ebpf.MapSpec
	}{
		{&o.first, ebpf.MapSpec{Name: "gorxe_first", Type: ebpf.Array, KeySize: 4,
			ValueSize: firstLen, MaxEntries: 1}},
		{&o.v4, ebpf.MapSpec{Name: "gorxe_addrs4", Type: ebpf.Hash, KeySize: ipv4KeyLen,
			ValueSize: ownLen, MaxEntries: maxAddrs + maxGroups}},
		{&o.v6, ebpf.MapSpec{Name: "gorxe_addrs6", Type: ebpf.Hash, KeySize: ipv6KeyLen,
			ValueSize: ownLen, MaxEntries: maxAddrs + maxGroups}},
	} {
		var err error
		if *m.to, err = ebpf.NewMap(&m.spec); err != nil {
			o.close()
			return nil, err
		}
	}
	return o, nil
}

func (o *ownAddrs) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	for _, m := range []*ebpf.Map{o.first, o.v4, o.v6} {
		if m != nil {
			m.Close()
		}
	}
}

func (o *ownAddrs) mapOf(a netip.Addr) *ebpf.Map {
	if a.Is4() {
		return o.v4
	}
	return o.v6
}

// put makes the program redirect packets to a that have the destination MAC m.
func (o *ownAddrs) put(a netip.Addr, m bth.MAC) error {
	var value [ownLen]byte
	copy(value[:], m[:])
	return o.mapOf(a).Put(a.AsSlice(), value[:])
}

func (o *ownAddrs) remove(a netip.Addr) {
	_ = o.mapOf(a).Delete(a.AsSlice()) // it fails only if the map was closed
}

// setHosts replaces the unicast addresses. It returns those that are redirected now, in the order
// of addrs, and an error if there are others.
func (o *ownAddrs) setHosts(addrs []netip.Prefix, m bth.MAC) (set []netip.Prefix, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return nil, ErrClosed
	}
	hosts := map[netip.Addr]bth.MAC{}
	var count4, count6 int
	for _, p := range addrs {
		a, count := p.Addr(), &count6
		if a.Is4() {
			count = &count4
		}
		if _, again := hosts[a]; !again {
			if *count == maxAddrs {
				err = fmt.Errorf("more than %d addresses of one IP version: remove some", maxAddrs)
				continue
			}
			if old, known := o.hosts[a]; !known || old != m {
				if e := o.put(a, m); e != nil {
					err = errors.Join(err, fmt.Errorf("cannot receive packets to %v: %w", a, e))
					continue
				}
			}
			hosts[a] = m
			*count++
		}
		set = append(set, p)
	}
	for a := range o.hosts {
		if _, keep := hosts[a]; !keep {
			o.remove(a)
		}
	}
	o.hosts = hosts
	return set, errors.Join(err, o.setFirst(set, m))
}

// setFirst writes the first addresses of each IP version.
func (o *ownAddrs) setFirst(set []netip.Prefix, m bth.MAC) error {
	var value [firstLen]byte
	copy(value[:], m[:])
	at4, at6 := value[first4Off:first6Off], value[first6Off:]
	for _, p := range set {
		a := p.Addr().AsSlice()
		if len(a) == ipv4KeyLen {
			at4 = at4[copy(at4, a):]
		} else {
			at6 = at6[copy(at6, a):]
		}
	}
	for len(at4) > 0 {
		at4 = at4[copy(at4, unused4.AsSlice()):]
	}
	for len(at6) > 0 {
		at6 = at6[copy(at6, unused6.AsSlice()):]
	}
	if value == o.firstValue {
		return nil
	}
	o.firstValue = value
	return o.first.Put(uint32(0), value[:])
}

// addGroup makes the program redirect packets to a multicast group.
func (o *ownAddrs) addGroup(group netip.Addr) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return ErrClosed
	}
	if len(o.groups) == maxGroups {
		return fmt.Errorf("more than %d multicast groups: leave some", maxGroups)
	}
	if err := o.put(group, multicastMAC(group)); err != nil {
		return err
	}
	o.groups[group] = true
	return nil
}

func (o *ownAddrs) removeGroup(group netip.Addr) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.groups[group] && !o.closed {
		o.remove(group)
		delete(o.groups, group)
	}
}
