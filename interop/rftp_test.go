//go:build interop

package interop_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/gorxe/gorxe/interop/peer"
	"github.com/gorxe/gorxe/transport/rftp"
)

// Parameters of the scenarios of RFTP. The guest's pool has another size than gorxe's, and its
// blocks are larger than any path MTU.
const (
	rftpPort      = 7482
	rftpBlocks    = 16
	rftpGuestSize = 40000
	rftpSize      = 64 << 10
	rftpPool      = 24 * rftpSize
	rftpTime      = 2 * time.Minute
	rftpFile      = 2<<20 + 12345 // bytes of a file
	rftpLossyFile = 400000        // rxe waits long before it retransmits
)

// TestRFTP sends a file from gorxe to a program with only libibverbs and librdmacm on the kernel's
// rxe, and another file back over the same connection. The program implements docs/rftp.md. Loss
// and several data QPs bring blocks out of order.
func TestRFTP(t *testing.T) {
	for _, s := range []struct {
		name string
		qps  int
		loss string // both directions
		file int    // bytes
	}{{"one data QP", 1, "", rftpFile}, {"four data QPs", 4, "", rftpFile},
		{"four data QPs, lossy", 4, "2%", rftpLossyFile}} {
		if *coreFlag && s.qps == 1 {
			continue
		}
		play(t, "RFTP, files both ways, "+s.name, few(),
			func(t *testing.T, r *rig, v variant) {
				p := startPeer(t, r, peer.RFTP)
				if s.loss != "" {
					r.fault(t, true, "loss "+s.loss)
					r.fault(t, false, "loss "+s.loss)
				}
				ctx, cancel := context.WithTimeout(t.Context(), rftpTime)
				defer cancel()
				c := r.rftpConn(ctx, t, v, p, s.qps)
				defer func() { _ = c.Close() }()
				if c.BlockSize() != rftpGuestSize || c.DataQPs() != s.qps {
					t.Errorf("agreed on blocks of %d bytes and %d data QPs, want %d and %d",
						c.BlockSize(), c.DataQPs(), rftpGuestSize, s.qps)
				}
				r.rftpToGuest(ctx, t, c, p, s.file)
				r.rftpFromGuest(ctx, t, c, p, s.file)
				r.rftpToGuest(ctx, t, c, p, 0)
				r.rftpFromGuest(ctx, t, c, p, 1)
				rftpFinish(ctx, t, c, p)
			})
	}
	if *coreFlag {
		return
	}
	play(t, "RFTP, sizes differ", few()[:2], func(t *testing.T, r *rig, v variant) {
		p := startPeer(t, r, peer.RFTP)
		if v.gorxePassive {
			rftpRefuses(t, r, v, p)
		} else {
			rftpIsRefused(t, r, v, p)
		}
	})
}

func rftpConfig(qps int) rftp.Config {
	return rftp.Config{BlockSize: rftpSize, Pool: rftpPool, SourcePool: rftpPool, DataQPs: qps}
}

// rftpConn connects gorxe and the guest.
func (r *rig) rftpConn(ctx context.Context, t *testing.T, v variant, p *peer.Peer, qps int,
) *rftp.Conn {
	t.Helper()
	if v.gorxePassive {
		addr := netip.AddrPortFrom(r.HostAddr(v.v6), rftpPort)
		cfg := rftp.ListenConfig{Config: rftpConfig(qps),
			Refused: func(_ netip.AddrPort, err error) { t.Logf("the listener refuses: %v", err) }}
		l, err := rftp.Listen(r.dev, addr, cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		dialed := command(p, "dial addr=%v port=%d blocks=%d size=%d qps=%d", addr.Addr(), rftpPort,
			rftpBlocks, rftpGuestSize, qps)
		c, err := l.Accept(ctx)
		if f := <-dialed; err != nil || f.err != nil {
			t.Fatal(err, f.err)
		}
		return c
	}
	if _, err := p.Do(0, "listen port=%d blocks=%d size=%d", rftpPort, rftpBlocks,
		rftpGuestSize); err != nil {
		t.Fatal(err)
	}
	accepted := command(p, "accept qps=%d", qps)
	addr := netip.AddrPortFrom(r.Guests[0].Addr(v.v6), rftpPort)
	c, err := rftp.Dial(ctx, r.dev, addr, rftpConfig(qps))
	if f := <-accepted; err != nil || f.err != nil {
		t.Fatal(err, f.err)
	}
	return c
}

// rftpToGuest sends a file of n bytes to the guest.
func (r *rig) rftpToGuest(ctx context.Context, t *testing.T, c *rftp.Conn, p *peer.Peer, n int) {
	t.Helper()
	data := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(data)
	got := command(p, "get file=/tmp/rftp")
	s, err := c.Open(ctx, []byte("file"))
	if err != nil {
		t.Fatal(err)
	}
	sent := 0
	for off := 0; off < n; sent++ {
		b, err := s.GetFree(ctx)
		if err != nil {
			t.Fatal(err)
		}
		b.Offset, b.Len = uint64(off), copy(b.Data, data[off:])
		off += b.Len
		if err := s.Send(b); err != nil {
			t.Fatal(err)
		}
	}
	s.End()
	err = s.Wait(ctx)
	f := <-got
	if err != nil || f.err != nil {
		t.Fatal(err, f.err)
	}
	if f.Num("bytes") != uint64(n) || f.Num("blocks") != uint64(sent) {
		t.Errorf("the guest has %v, want %d bytes in %d blocks", f.Fields, n, sent)
	}
	if sum, want := r.guestSum(t, "/tmp/rftp"), fmt.Sprintf("%x",
		sha256.Sum256(data)); sum != want {
		t.Errorf("the guest's file has the SHA-256 sum %s, want %s", sum, want)
	}
}

// rftpFromGuest receives a file of n bytes from the guest.
func (r *rig) rftpFromGuest(ctx context.Context, t *testing.T, c *rftp.Conn, p *peer.Peer, n int) {
	t.Helper()
	r.guest(t, fmt.Sprintf("head -c %d /dev/urandom > /tmp/rftp", n))
	put := command(p, "put file=/tmp/rftp")
	data := make([]byte, n)
	blocks, bytes := 0, 0
	for ended := false; !ended; {
		it, err := c.GetReady(ctx)
		if err != nil {
			t.Fatal(err)
		}
		switch it.Kind {
		case rftp.Data:
			if it.Block.Offset > uint64(n) {
				t.Fatalf("a block at offset %d", it.Block.Offset)
			}
			bytes += copy(data[it.Block.Offset:], it.Block.Data)
			blocks++
			if err := c.PutFree(it.Block); err != nil {
				t.Fatal(err)
			}
		case rftp.Ended:
			ended = true
			if int(it.Blocks) != blocks {
				t.Errorf("a session of %d blocks, and %d have arrived", it.Blocks, blocks)
			}
		case rftp.Aborted:
			t.Fatalf("aborted: %s", it.Text)
		}
	}
	f := <-put
	if f.err != nil || f.Num("blocks") != uint64(blocks) || f.Num("bytes") != uint64(n) ||
		bytes != n {
		t.Fatalf("the guest has sent %v, %v; %d bytes in %d blocks have arrived", f.Fields, f.err,
			bytes, blocks)
	}
	if sum, want := fmt.Sprintf("%x", sha256.Sum256(data)), r.guestSum(t,
		"/tmp/rftp"); sum != want {
		t.Errorf("the file has the SHA-256 sum %s, want %s", sum, want)
	}
}

// guestSum returns the SHA-256 sum of a file in the guest.
func (r *rig) guestSum(t *testing.T, name string) string {
	t.Helper()
	sum, _, _ := strings.Cut(r.guest(t, "sha256sum "+name), " ")
	return sum
}

// rftpFinish ends a connection in order on both sides.
func rftpFinish(ctx context.Context, t *testing.T, c *rftp.Conn, p *peer.Peer) {
	t.Helper()
	closed := command(p, "close")
	if err := c.Finish(ctx); err != nil {
		t.Error(err)
	}
	if it, err := c.GetReady(ctx); !errors.Is(err, io.EOF) {
		t.Errorf("GetReady() = %+v, %v, want io.EOF", it, err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if f := <-closed; f.err != nil {
		t.Error(f.err)
	}
}

func rftpIsRefused(t *testing.T, r *rig, v variant, p *peer.Peer) {
	if _, err := p.Do(0, "listen port=%d blocks=%d size=%d", rftpPort, rftpBlocks,
		rftpGuestSize); err != nil {
		t.Fatal(err)
	}
	accepted := command(p, "accept qps=1 ms=10000")
	cfg := rftpConfig(1)
	cfg.MinBlockSize = rftpSize
	_, err := rftp.Dial(t.Context(), r.dev,
		netip.AddrPortFrom(r.Guests[0].Addr(v.v6), rftpPort), cfg)
	var m *rftp.MismatchError
	if !errors.As(err, &m) || m.Peer.BlockSize != rftpGuestSize {
		t.Errorf("Dial() = %v, want a MismatchError with the guest's size", err)
	}
	if f := <-accepted; !errors.Is(f.err, peer.ErrRefused) {
		t.Errorf("the guest: %v", f.err)
	}
}

func rftpRefuses(t *testing.T, r *rig, v variant, p *peer.Peer) {
	refused := make(chan error, 1)
	cfg := rftp.ListenConfig{Config: rftpConfig(1),
		Refused: func(_ netip.AddrPort, err error) { refused <- err }}
	cfg.MinBlockSize = rftpSize
	l, err := rftp.Listen(r.dev, netip.AddrPortFrom(r.HostAddr(v.v6), rftpPort), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	go func() { _, _ = l.Accept(t.Context()) }() // until Close
	dialed := command(p, "dial addr=%v port=%d blocks=%d size=%d ms=10000", r.HostAddr(v.v6),
		rftpPort, rftpBlocks, rftpGuestSize)
	if err := <-refused; !errors.Is(err, rftp.ErrMismatch) {
		t.Errorf("the listener refuses with %v, want ErrMismatch", err)
	}
	if f := <-dialed; !errors.Is(f.err, peer.ErrRefused) ||
		!strings.Contains(f.err.Error(), fmt.Sprintf("size=%d to %d", rftpSize, rftpSize)) {
		t.Errorf("the guest: %v", f.err)
	}
}
