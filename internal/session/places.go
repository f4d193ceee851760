package session

import (
	"net/netip"
	"sync"
)

// Places bounds how many peers a server serves at a time, and shares the places by address: who has k of them gets another
// while more than k are free. So one address ends with half of them at most, and a newcomer finds a place.
type Places struct {
	mu   sync.Mutex
	free int
	held map[netip.Addr]int
}

// NewPlaces makes n places.
func NewPlaces(n int) *Places { return &Places{free: n, held: map[netip.Addr]int{}} }

// Take takes a place for a peer, to be given back by release; false: there is none for this one now.
func (p *Places) Take(peer netip.Addr) (release func(), ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.held[peer] >= p.free {
		return nil, false
	}
	p.free--
	p.held[peer]++
	return sync.OnceFunc(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.free++
		if p.held[peer]--; p.held[peer] == 0 {
			delete(p.held, peer)
		}
	}), true
}
