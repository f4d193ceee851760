package statusbyte

import (
	"context"
	"errors"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
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
	l, err := Listen(bed.Dev[1], bed.Addr(1, testPort), cfg)
	if err != nil {
		t.Fatal(err)
	}
	first, second := testbed.NewForger(bed.Link, 2, 1), testbed.NewForger(bed.Link, 3, 1)
	right := protocol.Put(nil, blocks.Sizes{Blocks: 4, Size: 1000})
	for range accept.Max {
		if err := errors.Join(first.REQ(testPort, right), first.REQ(testPort, []byte("wrong")),
			second.REQ(testPort, right), second.REQ(testPort, nil)); err != nil {
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
	if err := s.Write(ctx, 1, []byte("data")); err != nil {
		t.Fatal(err)
	}
	b, err := got.r.Receive(ctx)
	if err != nil || string(b.Data) != "data" {
		t.Fatalf("Receive() = %q, %v", b.Data, err)
	}
	b.Release()
	// The others are given up with the Listener.
	if err := errors.Join(s.Close(), got.r.Close(), l.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Accept(ctx); err == nil {
		t.Error("Accept() after Close succeeded")
	}
}

// A receiver cannot make a sender that accepts its sizes allocate gigabytes.
func TestReceiverOffersTooMuch(t *testing.T) {
	a, b := devices(t, loopback.Config{})
	l, err := b.Listen(testAddr(b), roce.ListenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(within(t))
	offer := memory{Sizes: blocks.Sizes{Blocks: MaxBlocks, Size: 512 << 10},
		stride: stride(512 << 10)}
	done := make(chan error, 1)
	go func() {
		for {
			q, err := l.Accept(ctx)
			if err != nil {
				done <- nil
				return
			}
			e, err := blocks.NewEndpoint(b, blocks.Depths{Send: 1, SendCQ: 1, Recv: 1})
			if err == nil {
				_, err = q.Accept(ctx, e.QP, roce.AcceptOptions{PrivateData: offer.put(nil)})
			}
			if err != nil && ctx.Err() == nil && !errors.Is(err, roce.ErrRequestOver) {
				done <- err
				return
			}
		}
	}()
	for _, c := range []Config{{}, {Blocks: MaxBlocks}, {BlockSize: 512 << 10}} {
		if _, err := Init(ctx, a, l.Addr(), c); !errors.Is(err, ErrMismatch) {
			t.Errorf("Init() with %d blocks of %d bytes = %v, want ErrMismatch", c.Blocks,
				c.BlockSize, err)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// Only permitted peers can connect.
func TestPeers(t *testing.T) {
	a, b := devices(t, loopback.Config{})
	own := netip.PrefixFrom(addrOf(a), 32)
	for name, cfg := range map[string]Config{
		"Peers":   {Peers: roce.PeerList{Deny: []netip.Prefix{own}}},
		"Permits": {Permits: func(peer netip.Addr) bool { return !own.Contains(peer) }},
	} {
		cfg.Blocks, cfg.BlockSize = 1, 10
		l := listen(t, b, cfg)
		ctx, cancel := context.WithTimeout(within(t), 50*time.Millisecond)
		go func() { _, _ = l.Accept(ctx) }()
		if _, err := Init(ctx, a, l.Addr(), Config{}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: Init() of a peer that is denied = %v, want DeadlineExceeded", name, err)
		}
		cancel()
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
}
