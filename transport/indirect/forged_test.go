package indirect

import (
	"errors"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/loopback"
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
	const n = 4
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
	if d := time.Since(begin); d > accept.Time/2 {
		t.Errorf("the peer waited for %v", d)
	}
	serve(t, b)
	write(t, a, b, 0, size, 0, 1)
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if n := len(b.all()); n != 1 {
		t.Errorf("%d connections are left, want 1", n)
	}
}
