// Package accepttest contains a test that the transports share.
//
// Reading order:
//   - forged.go: Forged
package accepttest

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/internal/accept"
)

const port = 7481

// message is what the test transfers.
const message = "data"

// Transport describes a transport with a configuration C, a listener L and the ends of a
// connection, S and R.
type Transport[C any, L interface {
	Accept(context.Context) (R, error)
	Addr() netip.AddrPort
	io.Closer
}, S, R io.Closer] struct {
	Private []byte // private data of a correct request
	Config  C      // of both sides
	// Refused returns the configuration of a listener that calls refused for each request that
	// fails.
	Refused func(c C, refused func(netip.AddrPort, error)) C
	Listen  func(dev *roce.Device, addr netip.AddrPort, c C) (L, error)
	Dial    func(ctx context.Context, dev *roce.Device, addr netip.AddrPort, c C) (S, error)
	Send    func(ctx context.Context, s S, message []byte) error
	Receive func(ctx context.Context, r R) (string, error)
}

// Forged checks that requests of hosts that do not answer, and requests of another protocol,
// neither end Accept nor keep another sender waiting.
func (tr *Transport[C, L, S, R]) Forged(t *testing.T) {
	bed, err := testbed.New(testbed.Config{Link: loopback.Config{Ports: 4}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = bed.Close() })
	var refused atomic.Int64
	l, err := tr.Listen(bed.Dev[1], bed.Addr(1, port),
		tr.Refused(tr.Config, func(netip.AddrPort, error) { refused.Add(1) }))
	if err != nil {
		t.Fatal(err)
	}
	first, second := testbed.NewForger(bed.Link, 2, 1), testbed.NewForger(bed.Link, 3, 1)
	for range accept.Max {
		if err := errors.Join(first.REQ(port, tr.Private), first.REQ(port, []byte("wrong")),
			second.REQ(port, tr.Private), second.REQ(port, nil)); err != nil {
			t.Fatal(err)
		}
	}
	// One after the other, they would take 2*Max times accept.Time.
	ctx, cancel := context.WithTimeout(t.Context(), 2*accept.Time)
	defer cancel()
	var r R
	accepted := make(chan error, 1)
	go func() {
		var err error
		r, err = l.Accept(ctx)
		accepted <- err
	}()
	// At least the wrong ones are refused at once.
	for refused.Load() < 2*accept.Max {
		if time.Sleep(time.Millisecond); ctx.Err() != nil {
			t.Fatalf("%d requests were refused, want at least %d", refused.Load(), 2*accept.Max)
		}
	}
	s, err := tr.Dial(ctx, bed.Dev[0], l.Addr(), tr.Config)
	if err != nil {
		t.Fatal(err)
	}
	if err := <-accepted; err != nil {
		t.Fatal(err)
	}
	if err := tr.Send(ctx, s, []byte(message)); err != nil {
		t.Fatal(err)
	}
	if got, err := tr.Receive(ctx, r); err != nil || got != message {
		t.Fatalf("Receive() = %q, %v, want %q", got, err, message)
	}
	// The others are given up with the listener.
	if err := errors.Join(s.Close(), r.Close(), l.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Accept(ctx); err == nil {
		t.Error("Accept() after Close succeeded")
	}
}
