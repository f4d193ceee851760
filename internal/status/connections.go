package status

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"

	"github.com/gorxe/gorxe/internal/limit"
)

// connections closes a connection when a server has more than it may, so that clients that keep
// theirs do not keep others out: browsers between two requests, and programs that never complete a
// request. It is one of the prefix with the most connections: the one that has been idle for the
// longest time, or the oldest one if none is idle.
type connections struct {
	mu   sync.Mutex
	open []*connection // oldest first, but idle ones in the order in which they became idle
}

type connection struct {
	net.Conn
	prefix netip.Prefix
	idle   bool
}

// changed is http.Server.ConnState.
func (c *connections) changed(conn net.Conn, state http.ConnState) {
	if victim := c.note(conn, state); victim != nil {
		_ = victim.Close()
	}
}

// note records a change and returns the connection to be closed, or nil.
func (c *connections) note(conn net.Conn, state http.ConnState) (victim net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.IndexFunc(c.open, func(o *connection) bool { return o.Conn == conn })
	switch {
	case state == http.StateNew:
		c.open = append(c.open, &connection{Conn: conn, prefix: prefixOf(conn)})
		return c.surplus()
	case i < 0: // it is being closed
	case state == http.StateClosed || state == http.StateHijacked:
		c.open = slices.Delete(c.open, i, i+1)
	case state == http.StateIdle:
		o := c.open[i]
		o.idle = true
		c.open = append(slices.Delete(c.open, i, i+1), o)
	default:
		c.open[i].idle = false
	}
	return nil
}

// surplus removes a connection if there are too many, and returns it. The caller holds mu.
func (c *connections) surplus() net.Conn {
	if len(c.open) <= maxConns {
		return nil
	}
	most := limit.Most(c.open, func(o *connection) netip.Prefix { return o.prefix })
	i := slices.IndexFunc(c.open, func(o *connection) bool { return o.idle && most(o) })
	if i < 0 {
		i = slices.IndexFunc(c.open, most)
	}
	victim := c.open[i].Conn
	c.open = slices.Delete(c.open, i, i+1)
	return victim
}

// prefixOf returns the prefix of the client.
func prefixOf(c net.Conn) netip.Prefix {
	if a, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		return limit.Prefix(a.AddrPort().Addr())
	}
	return netip.Prefix{}
}
