package session

import (
	"net/netip"
	"sync"
)

// Limiter limits how many peers a server serves at a time and divides this number among the peers'
// addresses. An address that holds k slots gets another one only while more than k are free. A
// single address therefore gets at most half of the slots, and a new address still finds one. It is
// safe for concurrent use.
type Limiter struct {
	mu   sync.Mutex
	free int
	held map[netip.Addr]int
}

// NewLimiter returns a limiter with n slots.
func NewLimiter(n int) *Limiter { return &Limiter{free: n, held: map[netip.Addr]int{}} }

// Take takes a slot for a peer until the caller calls release. It returns false if the peer gets
// none at the moment.
func (l *Limiter) Take(peer netip.Addr) (release func(), ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held[peer] >= l.free {
		return nil, false
	}
	l.free--
	l.held[peer]++
	return sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.free++
		if l.held[peer]--; l.held[peer] == 0 {
			delete(l.held, peer)
		}
	}), true
}
