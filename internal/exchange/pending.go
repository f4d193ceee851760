package exchange

import (
	"slices"
	"sync"
)

// maxPending is the number of connections without a request that a Server keeps.
const maxPending = 64

// pendingConns holds the connections that have not sent a complete request yet. They do not count
// as sessions, so port scans, health checks and peers that stop in the middle of a request cannot
// block other clients. When it is full, the oldest connection is closed: a real client sends its
// request at once.
type pendingConns struct {
	mu    sync.Mutex
	conns []*Conn // oldest first
}

// add adds c and closes the oldest connection if there are too many.
func (p *pendingConns) add(c *Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns = append(p.conns, c)
	if len(p.conns) > maxPending {
		p.conns[0].Close()
		p.conns = slices.Delete(p.conns, 0, 1)
	}
}

// remove removes c. It reports whether c was closed because there were too many connections.
func (p *pendingConns) remove(c *Conn) (evicted bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.Index(p.conns, c)
	if i < 0 {
		return true
	}
	p.conns = slices.Delete(p.conns, i, i+1)
	return false
}
