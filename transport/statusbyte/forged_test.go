package statusbyte

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/internal/accept/accepttest"
	"github.com/gorxe/gorxe/transport/internal/blocks"
)

// Forged requests neither end Accept nor keep another sender waiting.
func TestForgedRequests(t *testing.T) {
	c := Config{Blocks: 4, BlockSize: 1000}
	tr := accepttest.Transport[Config, *Listener, *Sender, *Receiver]{
		Private: protocol.Put(nil, blocks.Sizes{Blocks: c.Blocks, Size: c.BlockSize}), Config: c, Listen: Listen, Dial: Init,
		Refused: func(c Config, f func(netip.AddrPort, error)) Config { c.Refused = f; return c },
		Send:    func(ctx context.Context, s *Sender, b []byte) error { return s.Write(ctx, 1, b) },
		Receive: func(ctx context.Context, r *Receiver) (string, error) {
			b, err := r.Receive(ctx)
			return string(b.Data), err
		},
	}
	tr.Forged(t)
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
