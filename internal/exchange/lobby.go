package exchange

import (
	"slices"
	"sync"
)

// maxLobby is how many connections that have not said yet what they want a Server keeps.
const maxLobby = 64

// lobby is where connections are until they have said what they want: there they cost no session's place, so that a scan of the port,
// a health check or a stranger who stops in mid-sentence keeps nobody out. When it is full, whoever has been there for longest has to
// go: a client says all at once.
type lobby struct {
	mu    sync.Mutex
	conns []*Conn // in the order in which they came
}

// enter takes c in.
func (l *lobby) enter(c *Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns = append(l.conns, c)
	if len(l.conns) > maxLobby {
		l.conns[0].Close()
		l.conns = slices.Delete(l.conns, 0, 1)
	}
}

// leave lets c out. evicted tells that c had to make room for another one.
func (l *lobby) leave(c *Conn) (evicted bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.Index(l.conns, c)
	if i < 0 {
		return true
	}
	l.conns = slices.Delete(l.conns, i, i+1)
	return false
}
