//go:build interop

package interop_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/gorxe/gorxe/interop/peer"
	"github.com/gorxe/gorxe/transport/slidingwindow"
)

// Parameters of the sliding window's scenarios. Blocks are larger than any path MTU.
const (
	slidingPort    = 7481
	slidingBlocks  = 4
	slidingSize    = 10000
	slidingPackets = 200
	slidingTime    = time.Minute
)

var slidingConfig = slidingwindow.Config{Blocks: slidingBlocks, BlockSize: slidingSize}

// TestSlidingWindow tests transport/slidingwindow against a program with only libibverbs and
// librdmacm on the kernel's rxe as sender and receiver: every byte is compared, acknowledgments are
// cumulative, packets are lost.
func TestSlidingWindow(t *testing.T) {
	playStreams(t, "sliding window", peer.SlidingWindow,
		[]streams{{name: "clean", n: 1}, {name: "cumulative ACKs", n: 3},
			{name: "lossy", loss: "2%", n: 1}},
		[2]func(*testing.T, *rig, variant, *peer.Peer, int){windowSends, windowReceives},
		[2]func(*testing.T, *rig, variant, *peer.Peer){windowIsRefused, windowRefuses})
}

// slidingContent is the content of block n on both sides.
func slidingContent(n int) []byte {
	b := make([]byte, 977*n%(slidingSize+1))
	for i := range b {
		b[i] = byte(17*n + i)
	}
	return b
}

func windowSends(t *testing.T, r *rig, v variant, p *peer.Peer, every int) {
	if _, err := p.Do(0, "listen port=%d blocks=%d size=%d", slidingPort, slidingBlocks,
		slidingSize); err != nil {
		t.Fatal(err)
	}
	served := command(p, "serve ms=%d every=%d", slidingTime.Milliseconds(), every)
	ctx, cancel := context.WithTimeout(t.Context(), slidingTime)
	defer cancel()
	s, err := slidingwindow.Init(ctx, r.dev,
		netip.AddrPortFrom(r.Guests[0].Addr(v.v6), slidingPort), slidingConfig)
	if err != nil {
		t.Fatal(err)
	}
	for n := range slidingPackets {
		if err := s.Write(ctx, slidingContent(n)); err != nil {
			t.Fatal(errors.Join(fmt.Errorf("block %d: %w", n, err), s.Close()))
		}
	}
	if err := errors.Join(s.Flush(ctx), s.Close()); err != nil {
		t.Error(err)
	}
	f := <-served
	if f.err != nil {
		t.Fatal(f.err)
	}
	t.Logf("guest: %v", f.Fields)
	if f.Num("packets") != slidingPackets || f.Num("wrong") != 0 || f.Num("acks") == 0 ||
		(every > 1 && f.Num("acks") == slidingPackets) {
		t.Errorf("the guest has %v", f.Fields)
	}
}

func windowReceives(t *testing.T, r *rig, v variant, p *peer.Peer, every int) {
	l, err := slidingwindow.Listen(r.dev, netip.AddrPortFrom(r.HostAddr(v.v6), slidingPort),
		slidingConfig)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), slidingTime)
	defer cancel()
	sent := command(p, "send addr=%v port=%d blocks=%d size=%d packets=%d ms=%d", r.HostAddr(v.v6),
		slidingPort, slidingBlocks, slidingSize, slidingPackets, slidingTime.Milliseconds())
	rx, err := l.Accept(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rx.Close() }()
	var held []slidingwindow.Block
	for n := 0; ; n++ {
		b, err := rx.Receive(ctx)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if b.Seq != uint64(n) || !bytes.Equal(b.Data, slidingContent(n)) {
			t.Fatalf("block %d with %d bytes, where %d was to come", b.Seq, len(b.Data), n)
		}
		// Released last to first: one acknowledgment for all of them, with the first one.
		if held = append(held, b); len(held) < every && n < slidingPackets-1 {
			continue
		}
		for i := range held {
			if err := held[len(held)-1-i].Release(); err != nil {
				t.Fatal(err)
			}
		}
		held = held[:0]
	}
	f := <-sent
	if f.err != nil {
		t.Fatal(f.err)
	}
	t.Logf("guest: %v", f.Fields)
	if want := uint64((slidingPackets + every - 1) / every); f.Num("packets") != slidingPackets ||
		f.Num("acks") != want {
		t.Errorf("the guest has %v, want %d ACKs", f.Fields, want)
	}
}

func windowIsRefused(t *testing.T, r *rig, v variant, p *peer.Peer) {
	if _, err := p.Do(0, "listen port=%d blocks=%d size=%d", slidingPort, slidingBlocks,
		slidingSize); err != nil {
		t.Fatal(err)
	}
	served := command(p, "serve ms=10000")
	other := slidingConfig
	other.Blocks++
	if _, err := slidingwindow.Init(t.Context(), r.dev,
		netip.AddrPortFrom(r.Guests[0].Addr(v.v6), slidingPort), other); !errors.Is(err,
		slidingwindow.ErrMismatch) {
		t.Errorf("%v", err)
	}
	if f := <-served; !errors.Is(f.err, peer.ErrRefused) {
		t.Errorf("the guest: %v", f.err)
	}
}

func windowRefuses(t *testing.T, r *rig, v variant, p *peer.Peer) {
	refused := make(chan error, 1)
	cfg := slidingConfig
	cfg.Refused = func(_ netip.AddrPort, err error) { refused <- err }
	l, err := slidingwindow.Listen(r.dev, netip.AddrPortFrom(r.HostAddr(v.v6), slidingPort), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	go func() { _, _ = l.Accept(t.Context()) }() // until Close
	sent := command(p, "send addr=%v port=%d blocks=%d size=%d ms=10000", r.HostAddr(v.v6),
		slidingPort, slidingBlocks, slidingSize-1)
	if err := <-refused; !errors.Is(err, slidingwindow.ErrMismatch) {
		t.Errorf("%v", err)
	}
	if f := <-sent; !errors.Is(f.err, peer.ErrRefused) ||
		!strings.Contains(f.err.Error(), fmt.Sprintf("size=%d", slidingSize)) {
		t.Errorf("the guest: %v", f.err)
	}
}
