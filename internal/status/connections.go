package status

import (
	"net"
	"net/http"
	"slices"
	"sync"
)

// connections closes the connection that has been idle for the longest time when a server has as
// many as it may. Clients that keep connections open for their next request, such as browsers, then
// do not keep others out.
type connections struct {
	mu   sync.Mutex
	open int
	idle []net.Conn // oldest first
}

// changed is http.Server.ConnState.
func (c *connections) changed(conn net.Conn, state http.ConnState) {
	if oldest := c.note(conn, state); oldest != nil {
		_ = oldest.Close()
	}
}

// note records a change and returns the connection to be closed, or nil.
func (c *connections) note(conn net.Conn, state http.ConnState) (oldest net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.idle = slices.DeleteFunc(c.idle, func(o net.Conn) bool { return o == conn })
	switch state {
	case http.StateNew:
		c.open++
	case http.StateIdle:
		c.idle = append(c.idle, conn)
	case http.StateClosed, http.StateHijacked:
		c.open--
	}
	if c.open < maxConns || len(c.idle) == 0 {
		return nil
	}
	oldest, c.idle = c.idle[0], c.idle[1:]
	return oldest
}
