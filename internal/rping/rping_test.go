package rping

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/guard"
	"github.com/gorxe/gorxe/internal/limit"
	"github.com/gorxe/gorxe/internal/session"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
)

// network returns n devices on a link, and the address of a server on the second one.
func network(t *testing.T, n int) (
	link *loopback.Link, devs []*roce.Device, server netip.AddrPort) {
	t.Helper()
	link, err := loopback.NewLink(loopback.Config{Ports: n})
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		d, err := roce.New(link.Port(i))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Close() })
		devs = append(devs, d)
	}
	for _, p := range link.Port(1).Addrs() {
		if p.Addr().Is4() {
			server = netip.AddrPortFrom(p.Addr(), DefaultPort)
		}
	}
	return link, devs, server
}

func devices(t *testing.T) (a, b *roce.Device, addr netip.AddrPort) {
	t.Helper()
	_, devs, addr := network(t, 2)
	return devs[0], devs[1], addr
}

// A server answers several clients one after the other.
func TestPingPong(t *testing.T) {
	a, b, addr := devices(t)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	ended := make(chan error, 4)
	s := &Server{Dev: b, Log: func(_ netip.AddrPort, err error) { ended <- err }}
	l, err := s.Listen(DefaultPort)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error)
	go func() { served <- s.Serve(ctx, l) }()
	for _, size := range []int{16, 64, MaxSize} {
		c, err := Dial(ctx, a, nil, addr, size)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 20 {
			if err := c.Ping(ctx); err != nil {
				t.Fatalf("ping %d of %d bytes: %v", i, size, err)
			}
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if err := <-ended; err != nil {
			t.Errorf("the server's session: %v", err)
		}
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if err := <-served; err != nil {
		t.Errorf("Serve: %v", err)
	}
}

// A client that announces too much, or sends garbage, loses its session. The server continues.
func TestHostileClient(t *testing.T) {
	a, b, addr := devices(t)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	ended := make(chan error, 1)
	s := &Server{Dev: b, Log: func(_ netip.AddrPort, err error) { ended <- err }}
	l, err := s.Listen(DefaultPort)
	if err != nil {
		t.Fatal(err)
	}
	go s.Serve(ctx, l)
	hostile := map[string]func(c *Client) error{
		"text of 4 GB": func(c *Client) error {
			return c.side.announce(ctx,
				buffer{1, 2, 1<<32 - 1})
		},
		"wrong key": func(c *Client) error { return c.side.announce(ctx, buffer{1, 2, 64}) },
		"message of one byte": func(c *Client) error {
			return c.side.do(ctx, roce.SendWR{Op: roce.OpSend, Inline: []byte{1}})
		},
	}
	for what, act := range hostile {
		c, err := Dial(ctx, a, nil, addr, 64)
		if err != nil {
			t.Fatal(err)
		}
		if err := act(c); err != nil {
			t.Logf("%s: the client saw %v", what, err)
		}
		if err := <-ended; err == nil {
			t.Errorf("%s: the session ended without an error", what)
		}
		c.Close()
	}
	c, err := Dial(ctx, a, nil, addr, 64)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Ping(ctx); err != nil {
		t.Errorf("a correct client after the others: %v", err)
	}
}

// Clients of one address that keep their sessions leave slots for a client with another address.
func TestSlotsAreShared(t *testing.T) {
	_, devs, addr := network(t, 3)
	greedy, server, honest := devs[0], devs[1], devs[2]
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	s := &Server{Dev: server}
	l, err := s.Listen(DefaultPort)
	if err != nil {
		t.Fatal(err)
	}
	go s.Serve(ctx, l)
	var conns []*roce.Conn
	for {
		c, err := Dial(ctx, greedy, nil, addr, 16)
		var no *roce.RejectError
		if errors.As(err, &no) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		conns = append(conns, c.side.CM())
	}
	// The server may close a connection right after it was established, if another one was
	// established at the same time.
	held := func() (n int) {
		for _, c := range conns {
			if c.Err() == nil {
				n++
			}
		}
		return n
	}
	for end := time.Now().Add(5 * time.Second); held() != maxSessions/2; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("one address holds %d sessions of %d", held(), maxSessions)
		}
	}
	c, err := Dial(ctx, honest, nil, addr, 16)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Ping(ctx); err != nil {
		t.Error(err)
	}
}

// A client that sends a request and never completes the connection holds nothing for long, whatever
// timeouts it requests.
func TestIncompleteConnection(t *testing.T) {
	link, devs, addr := network(t, 2)
	if err := link.SetPlan(1, 0, loopback.Plan{Loss: 1}); err != nil { // the answers are lost
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	ended := make(chan error, 1)
	s := &Server{Dev: devs[1], connectTime: 300 * time.Millisecond,
		Log: func(_ netip.AddrPort, err error) { ended <- err }}
	l, err := s.Listen(DefaultPort)
	if err != nil {
		t.Fatal(err)
	}
	go s.Serve(ctx, l)
	go Dial(ctx, devs[0], nil, addr, 16)
	start := time.Now()
	if err := <-ended; !errors.Is(err, context.DeadlineExceeded) ||
		time.Since(start) > 10*time.Second {
		t.Errorf("after %v: %v", time.Since(start), err)
	}
}

// The server notices by a probe that a client's host has died. It does not disturb a slow client.
func TestClientDies(t *testing.T) {
	link, devs, addr := network(t, 2)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	ended := make(chan error, 1)
	s := &Server{Dev: devs[1], quietTime: 10 * time.Millisecond,
		Log: func(_ netip.AddrPort, err error) { ended <- err }}
	l, err := s.Listen(DefaultPort)
	if err != nil {
		t.Fatal(err)
	}
	go s.Serve(ctx, l)
	c := new(Client)
	if c.side, err = newSide(devs[0], nil, 16, 0); err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	// 14: 67 ms
	fast := roce.ConnectOptions{MaxRdAtomic: 1, MaxDestRdAtomic: 1, Timeout: 14, Retries: 3}
	if err := c.side.Dial(ctx, addr, roce.DialOptions{ConnectOptions: fast}); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		time.Sleep(5 * s.quietTime)
		if err := c.Ping(ctx); err != nil {
			t.Fatalf("a slow client: %v", err)
		}
	}
	for i := range 2 {
		if err := link.SetPlan(i, 1-i, loopback.Plan{Loss: 1}); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-ended; !errors.Is(err, errOperation) {
		t.Errorf("the session ended with %v, want %v", err, errOperation)
	}
}

// The server ends the session of a client that is alive and sends no pings.
func TestIdleClient(t *testing.T) {
	a, b, addr := devices(t)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	ended := make(chan error, 1)
	s := &Server{Dev: b, Idle: 100 * time.Millisecond, quietTime: 10 * time.Millisecond,
		Log: func(_ netip.AddrPort, err error) { ended <- err }}
	l, err := s.Listen(DefaultPort)
	if err != nil {
		t.Fatal(err)
	}
	go s.Serve(ctx, l)
	c, err := Dial(ctx, a, nil, addr, 16)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := <-ended; !errors.Is(err, session.ErrIdle) {
		t.Errorf("the session ended with %v, want ErrIdle", err)
	}
}

// The error of a client that the server refuses contains the server's reason.
func TestRefusalHasReason(t *testing.T) {
	a, b, addr := devices(t)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	deny := limit.Access{Deny: []netip.Prefix{netip.PrefixFrom(addr.Addr(), 8)}}
	s := &Server{Dev: b, Guard: guard.New(deny, nil)}
	l, err := s.Listen(DefaultPort)
	if err != nil {
		t.Fatal(err)
	}
	go s.Serve(ctx, l)
	if _, err := Dial(ctx, a, nil, addr, 64); !errors.Is(err, roce.ErrRefused) ||
		!strings.Contains(err.Error(), "not permitted") {
		t.Errorf("Dial() = %v, want ErrRefused with the server's reason", err)
	}
}

// A client uses the GID that its user has chosen.
func TestChosenGID(t *testing.T) {
	link, devs, addr := network(t, 2)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	l, err := (&Server{Dev: devs[1]}).Listen(DefaultPort)
	if err != nil {
		t.Fatal(err)
	}
	go (&Server{Dev: devs[1]}).Serve(ctx, l)
	extra := netip.MustParsePrefix("10.77.0.9/24")
	link.Port(0).SetAddrs(append(link.Port(0).Addrs(), extra)...)
	index := -1
	for index < 0 {
		for _, g := range devs[0].GIDs() {
			if g.Addr == extra.Addr() {
				index = g.Index
			}
		}
		if time.Sleep(time.Millisecond); ctx.Err() != nil {
			t.Fatal("the device does not have its second IPv4 address")
		}
	}
	c, err := Dial(ctx, devs[0], &index, addr, 64)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got := c.side.CM().LocalAddr().Addr(); got != extra.Addr() {
		t.Errorf("the client's address is %v, want %v", got, extra.Addr())
	}
	if err := c.Ping(ctx); err != nil {
		t.Error(err)
	}
}

func TestNoListener(t *testing.T) {
	a, _, addr := devices(t)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if _, err := Dial(ctx, a, nil, addr, 64); !errors.Is(err, roce.ErrRefused) {
		t.Errorf("Dial() = %v, want ErrRefused", err)
	}
}
