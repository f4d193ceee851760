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
)

// ownAddrs holds the addresses whose packets the XDP program redirects: the interface's unicast
// addresses with its MAC, and the groups that were joined with their multicast MACs. The program
// reads them from two hash maps, so changes take effect at once.
type ownAddrs struct {
	v4, v6 *ebpf.Map

	mu     sync.Mutex
	hosts  map[netip.Addr]bth.MAC
	groups map[netip.Addr]bool
	closed bool
}

func newOwnAddrs() (*ownAddrs, error) {
	o := &ownAddrs{hosts: map[netip.Addr]bth.MAC{}, groups: map[netip.Addr]bool{}}
	for _, m := range []struct {
		to  **ebpf.Map
		key uint32
	}{{&o.v4, ipv4KeyLen}, {&o.v6, ipv6KeyLen}} {
		var err error
		*m.to, err = ebpf.NewMap(&ebpf.MapSpec{Name: "gorxe_addrs", Type: ebpf.Hash,
			KeySize: m.key, ValueSize: ownLen, MaxEntries: maxAddrs + maxGroups})
		if err != nil {
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
	for _, m := range []*ebpf.Map{o.v4, o.v6} {
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
	return set, err
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
