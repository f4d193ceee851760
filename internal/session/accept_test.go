package session

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gorxe/gorxe/internal/endpoint"
	"github.com/gorxe/gorxe/internal/guard"
	"github.com/gorxe/gorxe/internal/halfopen"
	"github.com/gorxe/gorxe/internal/limit"
	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
)

// conn is the connection of a served client.
type conn struct {
	*endpoint.Endpoint
	cm *roce.Conn
}

func (c *conn) Close() error { return errors.Join(c.cm.Close(), c.Endpoint.Close()) }

const acceptPort = 4000

// startAcceptor runs an Acceptor on device 1. Its sessions last until the client disconnects.
func startAcceptor(t *testing.T, tb *testbed.Testbed, g *guard.Guard,
	ended func(netip.AddrPort, error)) {
	t.Helper()
	dev := tb.Dev[1]
	l, err := dev.Listen(netip.AddrPortFrom(netip.Addr{}, acceptPort), roce.ListenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	a := Acceptor[*conn]{
		Guard: g, Sessions: 2, Ended: ended,
		Open: func(ctx context.Context, r *roce.Request) (*conn, error) {
			e, err := endpoint.New(dev, endpoint.Config{})
			if err != nil {
				return nil, err
			}
			c := &conn{Endpoint: e}
			if c.cm, err = r.Accept(ctx, e.QP, roce.AcceptOptions{}); err != nil {
				return nil, errors.Join(err, e.Close())
			}
			return c, nil
		},
		Serve: func(ctx context.Context, _ *roce.Request, c *conn) error {
			select {
			case <-ctx.Done():
			case <-c.cm.Done():
			}
			return nil
		},
	}
	done := make(chan error, 1)
	go func() { done <- a.Run(t.Context(), l) }()
	t.Cleanup(func() {
		if err := errors.Join(l.Close(), <-done); err != nil {
			t.Error(err)
		}
	})
}

// dialAcceptor connects device 0 and disconnects at the end of the test.
func dialAcceptor(t *testing.T, tb *testbed.Testbed) error {
	t.Helper()
	e, err := endpoint.New(tb.Dev[0], endpoint.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	c, err := tb.Dev[0].Dial(ctx, tb.Addr(1, acceptPort), e.QP, roce.DialOptions{})
	if err == nil {
		t.Cleanup(func() { c.Close() })
	}
	return err
}

// An Acceptor rejects and counts clients that the Guard does not permit.
func TestAcceptorRefuses(t *testing.T) {
	tb, err := testbed.New(testbed.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tb.Close() })
	peer := tb.Addr(0, 0).Addr()
	g := guard.New(limit.Access{Deny: []netip.Prefix{netip.PrefixFrom(peer, peer.BitLen())}}, nil)
	startAcceptor(t, tb, g, func(_ netip.AddrPort, err error) {
		t.Errorf("a request that is not permitted ended with %v", err)
	})
	if err := dialAcceptor(t, tb); !errors.Is(err, roce.ErrRefused) {
		t.Errorf("Dial() = %v, want ErrRefused", err)
	}
	for name, n := range g.Counts() {
		if name == "refused_access" && n == 0 {
			t.Errorf("%s = %d, want more", name, n)
		}
	}
}

// Requests of hundreds of addresses that are never confirmed do not keep an honest client out, and
// take no sessions. They are replaced by newer ones, which is counted.
func TestFloodOfRequests(t *testing.T) {
	const forgers = MaxConnecting + 8
	tb, err := testbed.New(testbed.Config{Link: loopback.Config{Ports: 3}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tb.Close() })
	g := guard.New(limit.Access{}, nil)
	startAcceptor(t, tb, g, func(_ netip.AddrPort, err error) {
		if err != nil && t.Context().Err() == nil {
			t.Errorf("a session ended with %v", err)
		}
	})
	var sources []netip.Prefix
	for i := range forgers {
		a := netip.AddrFrom4([4]byte{10, 77, byte(1 + i/256), byte(i)})
		sources = append(sources, netip.PrefixFrom(a, 16))
	}
	tb.Link.Port(2).SetAddrs(sources...)
	f := testbed.NewForger(tb.Link, 2, 1)
	deadline := time.Now().Add(30 * time.Second)
	for i, from := range sources {
		f.Source = from.Addr()
		if err := f.REQ(acceptPort, nil); err != nil {
			t.Fatal(err)
		}
		for { // do not overflow the receive ring
			if tb.Dev[1].Counters().Get("cm_received_req") > uint64(i) {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("request %d did not arrive", i)
			}
			time.Sleep(10 * time.Microsecond)
		}
	}
	if err := dialAcceptor(t, tb); err != nil {
		t.Errorf("Dial() = %v", err)
	}
	for name, n := range g.Counts() {
		if name == "refused_busy" && n < forgers-MaxConnecting {
			t.Errorf("%s = %d, want at least %d", name, n, forgers-MaxConnecting)
		}
	}
}

// A request that is replaced while the client confirms the connection is not served.
func TestReplacedRequest(t *testing.T) {
	tb, err := testbed.New(testbed.Config{Link: loopback.Config{Ports: 3}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tb.Close() })
	l, err := tb.Dev[1].Listen(netip.AddrPortFrom(netip.Addr{}, acceptPort), roce.ListenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := testbed.NewForger(tb.Link, 2, 1).REQ(acceptPort, nil); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	r, err := l.Accept(ctx)
	if err != nil {
		t.Fatal(err)
	}
	slots, replaced := halfopen.New(1), make(chan struct{})
	peer := r.RemoteAddr().Addr()
	slot, err := slots.Take(ctx, peer, func(error) { close(replaced) })
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		if next, err := slots.Take(ctx, peer, func(error) {}); err == nil {
			next.Release()
		}
	}()
	c := new(closer)
	a := Acceptor[*closer]{
		Open: func(context.Context, *roce.Request) (*closer, error) {
			<-replaced
			return c, nil
		},
		Serve: func(context.Context, *roce.Request, *closer) error {
			t.Error("a replaced request is served")
			return nil
		},
	}
	err = a.session(ctx, r, slot, guard.NewLimiter(1))
	if !errors.Is(err, halfopen.ErrReplaced) || !c.closed {
		t.Errorf("session() = %v, want ErrReplaced; the connection is closed: %v", err, c.closed)
	}
}

// When Run ends, a request that waits for one of the slots is refused, like those that have one.
func TestEndRefusesWaitingRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tb, err := testbed.New(testbed.Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer tb.Close()
		l, err := tb.Dev[1].Listen(netip.AddrPortFrom(netip.Addr{}, acceptPort), roce.ListenOptions{})
		if err != nil {
			t.Fatal(err)
		}
		a := Acceptor[*closer]{
			Open: func(ctx context.Context, r *roce.Request) (*closer, error) {
				<-ctx.Done()
				return nil, errors.Join(ctx.Err(), r.Reject(nil))
			},
			Ended: func(netip.AddrPort, error) {},
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ended := make(chan error, 1)
		go func() { ended <- a.Run(ctx, l) }()
		pd, err := tb.Dev[0].AllocPD()
		if err != nil {
			t.Fatal(err)
		}
		const n = MaxConnecting + 1
		dialed := make(chan error, n)
		for range n {
			q, err := tb.Dev[0].CreateQP(pd, roce.QPConfig{SendDepth: 1, RecvDepth: 1})
			if err != nil {
				t.Fatal(err)
			}
			go func() {
				_, err := tb.Dev[0].Dial(t.Context(), tb.Addr(1, acceptPort), q, roce.DialOptions{})
				dialed <- err
			}()
		}
		time.Sleep(halfopen.MinTime) // the requests have arrived, and none was replaced
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run() = %v", err)
		}
		for range n {
			if err := <-dialed; !errors.Is(err, roce.ErrRefused) {
				t.Errorf("Dial() = %v, want ErrRefused", err)
			}
		}
	})
}

// closer is a connection that remembers whether it was closed.
type closer struct{ closed bool }

func (c *closer) Close() error {
	c.closed = true
	return nil
}
