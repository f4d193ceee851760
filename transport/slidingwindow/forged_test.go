package slidingwindow

import (
	"context"
	"errors"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/transport/internal/accept"
	"github.com/gorxe/gorxe/transport/internal/blocks"
)

// Requests of hosts that do not answer, and requests of another protocol, neither end Accept nor
// keep another sender waiting.
func TestForgedRequests(t *testing.T) {
	bed, err := testbed.New(testbed.Config{Link: loopback.Config{Ports: 4}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = bed.Close() })
	var refused atomic.Int64
	cfg := Config{Blocks: 4, BlockSize: 1000}
	cfg.Refused = func(netip.AddrPort, error) { refused.Add(1) }
	l, err := Listen(bed.Dev[1], bed.Addr(1, 7481), cfg)
	if err != nil {
		t.Fatal(err)
	}
	first, second := testbed.NewForger(bed.Link, 2, 1), testbed.NewForger(bed.Link, 3, 1)
	right := protocol.Put(nil, blocks.Sizes{Blocks: 4, Size: 1000})
	for range accept.Max {
		if err := errors.Join(first.REQ(7481, right), first.REQ(7481, []byte("wrong")),
			second.REQ(7481, right), second.REQ(7481, nil)); err != nil {
			t.Fatal(err)
		}
	}
	// One after the other, they would take 2*Max times accept.Time.
	ctx, cancel := context.WithTimeout(t.Context(), 2*accept.Time)
	defer cancel()
	type result struct {
		r   *Receiver
		err error
	}
	accepted := make(chan result, 1)
	go func() {
		r, err := l.Accept(ctx)
		accepted <- result{r, err}
	}()
	// At least the wrong ones are refused at once.
	for refused.Load() < 2*accept.Max {
		if time.Sleep(time.Millisecond); ctx.Err() != nil {
			t.Fatalf("%d requests were refused, want at least %d", refused.Load(), 2*accept.Max)
		}
	}
	s, err := Init(ctx, bed.Dev[0], l.Addr(), Config{Blocks: 4, BlockSize: 1000})
	if err != nil {
		t.Fatal(err)
	}
	got := <-accepted
	if got.err != nil {
		t.Fatal(got.err)
	}
	if err := s.Write(ctx, []byte("data")); err != nil {
		t.Fatal(err)
	}
	b, err := got.r.Receive(ctx)
	if err != nil || string(b.Data) != "data" {
		t.Fatalf("Receive() = %q, %v", b.Data, err)
	}
	_ = b.Release()
	// The others are given up with the Listener.
	if err := errors.Join(s.Close(), got.r.Close(), l.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Accept(ctx); err == nil {
		t.Error("Accept() after Close succeeded")
	}
}
