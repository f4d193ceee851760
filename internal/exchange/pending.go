package exchange

import (
	"net/netip"
	"slices"
	"sync"

	"github.com/gorxe/gorxe/internal/limit"
)

// maxPending is the number of connections without a request that a Server keeps.
const maxPending = 64

// pendingConns holds the connections that have not sent a complete request yet. They do not count
// as sessions, so port scans, health checks and peers that stop in the middle of a request cannot
// block other clients. When it is full, the oldest connection of the prefix with the most
// connections is closed: a real client sends its request at once, and a prefix that opens many
// connections closes only its own.
type pendingConns struct {
	mu    sync.Mutex
	conns []*Conn // oldest first
}

// add adds c and closes another connection if there are too many.
func (p *pendingConns) add(c *Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns = append(p.conns, c)
	if len(p.conns) > maxPending {
		prefix := func(c *Conn) netip.Prefix { return limit.Prefix(c.peer()) }
		i := slices.IndexFunc(p.conns, limit.Most(p.conns, prefix))
		p.conns[i].Close()
		p.conns = slices.Delete(p.conns, i, i+1)
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
