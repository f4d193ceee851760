package indirect

import (
	"errors"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/internal/accept"
)

// Requests of hosts that do not answer, and requests of another protocol, neither end Accept nor
// keep another peer waiting, nor use up the connections of the Endpoint.
func TestForgedRequests(t *testing.T) {
	const port = 7003
	link, err := loopback.NewLink(loopback.Config{Ports: 4})
	if err != nil {
		t.Fatal(err)
	}
	var refused atomic.Int64
	a := newEnd(t, newDevice(t, link, 0), Config{})
	b := newEnd(t, newDevice(t, link, 1),
		Config{Refused: func(netip.AddrPort, error) { refused.Add(1) }})
	l, err := b.Listen(netip.AddrPortFrom(netip.MustParseAddr("10.77.0.2"), port))
	if err != nil {
		t.Fatal(err)
	}
	ctx := within(t)
	accepted := make(chan error, 1)
	go func() {
		var err error
		b.conn, err = l.Accept(ctx)
		accepted <- err
	}()
	right := Params{Entries: uint16(b.cfg.Entries), Segment: uint32(b.cfg.Segment)}
	first, second := testbed.NewForger(link, 2, 1), testbed.NewForger(link, 3, 1)
	const n = 2 // all fit into the backlog, of which each source has a share
	for range n {
		if err := errors.Join(first.REQ(port, right.append(nil)), first.REQ(port, []byte("x")),
			second.REQ(port, right.append(nil)), second.REQ(port, nil)); err != nil {
			t.Fatal(err)
		}
	}
	until(t, "the wrong ones are refused", func() bool { return refused.Load() >= 2*n })
	begin := time.Now()
	if a.conn, err = a.Dial(ctx, l.Addr()); err != nil {
		t.Fatal(err)
	}
	if err := <-accepted; err != nil {
		t.Fatal(err)
	}
	// One after the other, the forged ones would take 2*n times accept.Time.
	if d := time.Since(begin); d > 2*accept.Time {
		t.Errorf("the peer waited for %v", d)
	}
	serve(t, b)
	write(t, a, b, 0, size, 0, 1)
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	until(t, "one connection is left", func() bool { return len(b.all()) == 1 })
}

// One peer cannot take all connections.
func TestMaxPeerConns(t *testing.T) {
	link, err := loopback.NewLink(loopback.Config{Ports: 3})
	if err != nil {
		t.Fatal(err)
	}
	refused := make(chan error, 1)
	greedy := newEnd(t, newDevice(t, link, 0), Config{})
	b := newEnd(t, newDevice(t, link, 1), Config{MaxConns: 4,
		Refused: func(_ netip.AddrPort, err error) { refused <- err }})
	other := newEnd(t, newDevice(t, link, 2), Config{})
	l, err := b.Listen(netip.MustParseAddrPort("10.77.0.2:7004"))
	if err != nil {
		t.Fatal(err)
	}
	ctx := within(t)
	got := make(chan *Conn, 8)
	go func() {
		for {
			c, err := l.Accept(ctx)
			if err != nil {
				return
			}
			got <- c
		}
	}()
	for range 2 {
		if _, err := greedy.Dial(ctx, l.Addr()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := greedy.Dial(ctx, l.Addr()); !errors.Is(err, roce.ErrRefused) {
		t.Errorf("a third Dial() = %v, want ErrRefused", err)
	}
	if err := <-refused; !errors.Is(err, ErrTooManyPeerConns) {
		t.Errorf("Refused got %v, want ErrTooManyPeerConns", err)
	}
	if _, err := other.Dial(ctx, l.Addr()); err != nil {
		t.Errorf("another peer: %v", err)
	}
	if err := (<-got).Close(); err != nil {
		t.Error(err)
	}
	if _, err := greedy.Dial(ctx, l.Addr()); err != nil {
		t.Errorf("after a connection ended: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	for _, c := range []Config{{MaxPeerConns: -1}, {MaxConns: 2, MaxPeerConns: 3}} {
		if err := c.check(); !errors.Is(err, ErrConfig) {
			t.Errorf("check() = %v, want ErrConfig", err)
		}
	}
}
