package oob

import (
	"context"
	"slices"
	"sync"
)

// maxSilent is how many connections that have said nothing yet a Server keeps.
const maxSilent = 64

// lobby is where connections are until they say something: there they cost no session's place, so that a scan of the port or a
// health check keeps nobody out. When it is full, whoever has been silent for longest has to go: a client speaks at once.
type lobby struct {
	mu    sync.Mutex
	conns []*Conn // in the order in which they came
}

// enter takes c in.
func (l *lobby) enter(c *Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns = append(l.conns, c)
	if len(l.conns) > maxSilent {
		l.conns[0].Close()
		l.conns = slices.Delete(l.conns, 0, 1)
	}
}

// wait returns when c has said something, and lets it out. evicted tells that c had to make room for another one.
func (l *lobby) wait(ctx context.Context, c *Conn) (evicted bool, err error) {
	_, err = c.First(ctx, Timeout)

	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.Index(l.conns, c)
	if i < 0 {
		return true, ErrGone
	}
	l.conns = slices.Delete(l.conns, i, i+1)
	return false, err
}
