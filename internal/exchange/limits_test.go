package exchange

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/gorxe/gorxe/internal/guard"
	"github.com/gorxe/gorxe/internal/limit"
	"github.com/gorxe/gorxe/roce"
)

// A client may name only the GID of the address from which it connected.
func TestSameAddr(t *testing.T) {
	for _, c := range []struct {
		peer, gid string
		want      bool
	}{
		{"192.0.2.1", "192.0.2.1", true},
		{"::ffff:192.0.2.1", "192.0.2.1", true},
		{"192.0.2.1", "192.0.2.2", false},
		{"2001:db8::1", "2001:db8::1", true},
		{"2001:db8::1", "2001:db8::2", false},
		{"2001:db8::1", "192.0.2.1", false},
		{"fe80::1%eth0", "fe80::1", true},
		{"fe80::1%eth0", "fe80::2", false},
	} {
		gid := roce.GIDFromAddr(netip.MustParseAddr(c.gid))
		err := SameAddr(t.Context(), netip.MustParseAddr(c.peer), gid)
		if (err == nil) != c.want || err != nil && !errors.Is(err, ErrAddress) {
			t.Errorf("SameAddr(%s, %s) = %v", c.peer, c.gid, err)
		}
	}
}

// A request that names another host's GID does not reach the service.
func TestServerChecksGIDs(t *testing.T) {
	g := guard.New(limit.Access{}, nil)
	addr := server(t, &Server{Services: map[string]Handler{"hold": hold}, Guard: g})
	for gid, want := range map[string]bool{"127.0.0.1": true, "192.0.2.1": false} {
		own, named := goodQP(), goodQP()
		own.Endpoint.GID = roce.GIDFromAddr(netip.MustParseAddr("127.0.0.1"))
		named.Endpoint.GID = roce.GIDFromAddr(netip.MustParseAddr(gid))
		c := dial(t, addr)
		_, err := c.Request(t.Context(), "hold", struct{}{}, []QP{own, own, named})
		if (err == nil) != want {
			t.Errorf("a request with GID %s returns %v", gid, err)
		}
		if !want && (!errors.Is(err, ErrRemote) || !strings.Contains(err.Error(), "127.0.0.1")) {
			t.Errorf("the client reads %v, want its TCP address", err)
		}
	}
	if n := counted(g, "refused_address"); n != 1 {
		t.Errorf("refused_address = %d, want 1", n)
	}
}

// The server tells a peer that its access lists refuse it, and counts it.
func TestServerRefusesByAddress(t *testing.T) {
	g := guard.New(limit.Access{Deny: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}, nil)
	addr := server(t, &Server{Services: map[string]Handler{"hold": hold}, Guard: g})
	c := dial(t, addr)
	if _, err := c.Receive(t.Context(), KindAccept); !errors.Is(err, ErrRemote) ||
		!strings.Contains(err.Error(), "--allow") {
		t.Errorf("the client reads %v, want advice about --allow", err)
	}
	if n := counted(g, "refused_access"); n != 1 {
		t.Errorf("refused_access = %d, want 1", n)
	}
}

// remoteConn is a connection of a peer with a given address.
type remoteConn struct {
	net.Conn
	addr   netip.AddrPort
	closed bool
}

func (c *remoteConn) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(c.addr) }
func (c *remoteConn) Close() error         { c.closed = true; return nil }

// A peer that opens many connections and sends nothing closes only its own ones, also if it uses
// many addresses of an IPv6 subnet.
func TestPendingIsShared(t *testing.T) {
	var p pendingConns
	add := func(addr string) *remoteConn {
		c := &remoteConn{addr: netip.AddrPortFrom(netip.MustParseAddr(addr), 1)}
		p.add(NewConn(c))
		return c
	}
	honest := []*remoteConn{add("192.0.2.1"), add("192.0.2.2"), add("2001:db8:1::1")}
	var greedy []*remoteConn
	for i := range 10 * maxPending {
		greedy = append(greedy, add(fmt.Sprintf("2001:db8::%x", i+1)))
	}
	for _, c := range honest {
		if c.closed {
			t.Errorf("the connection of %v was closed", c.addr)
		}
	}
	open := 0
	for _, c := range greedy {
		if !c.closed {
			open++
		}
	}
	if open != maxPending-len(honest) || greedy[0].closed == false ||
		greedy[len(greedy)-1].closed {
		t.Errorf("the greedy peer has %d connections, want the last %d", open,
			maxPending-len(honest))
	}
}

// Sessions are counted per prefix, and one prefix leaves some for others.
func TestSessionsAreShared(t *testing.T) {
	var l limits
	l.init(0, 0)
	admitted := func(format string) (n int) {
		for i := range DefaultSessions + 1 {
			if l.admit(netip.MustParseAddr(fmt.Sprintf(format, i+1))) == nil {
				n++
			}
		}
		return n
	}
	if n := admitted("2001:db8::%x"); n != DefaultPerPrefix {
		t.Errorf("an IPv6 subnet has %d sessions, want %d", n, DefaultPerPrefix)
	}
	for i := range 3 {
		admitted(fmt.Sprintf("2001:db8:0:%d::%%x", i+1))
	}
	if err := l.admit(netip.MustParseAddr("192.0.2.1")); err != nil {
		t.Errorf("a new client gets no session: %v", err)
	}
}

// A flood of peers that are refused does not use resources without limit.
func TestRefusalsAreBounded(t *testing.T) {
	s := &Server{}
	s.limits.init(0, 0)
	var waiting []func()
	refused, closed := 0, 0
	for i := range 10 * maxRefusals {
		c := &remoteConn{addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i)}), 1)}
		s.refuse(NewConn(c), context.Canceled, func(f func()) { waiting = append(waiting, f) })
		if c.closed {
			closed++
		} else {
			refused++
		}
	}
	if refused == 0 || refused > maxRefusals || len(waiting) != refused {
		t.Errorf("%d peers are being refused, %d were closed; want at most %d", refused, closed,
			maxRefusals)
	}
}
