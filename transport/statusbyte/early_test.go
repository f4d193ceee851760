package statusbyte

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/gorxe/gorxe/loopback"
)

// post posts a packet of n bytes with value v.
func post(t *testing.T, ctx context.Context, s *Sender, n int, v byte) error {
	t.Helper()
	f, err := s.Fill(ctx, 0)
	if err != nil {
		return err
	}
	for i := range f.Data[:n] {
		f.Data[i] = v
	}
	return f.Post(ctx, n, false)
}

// Synchronization starts only when no block is empty: the READ leaves with the block that uses the
// last empty one, not before, and only if the block is large. It reports on the blocks before it,
// so a stream of large blocks never waits for its own last one.
func TestEarlySynchronization(t *testing.T) {
	for _, c := range []struct {
		size  int
		syncs [4]uint64 // after each Post
	}{{earlyFrom, [4]uint64{0, 0, 1, 1}}, {earlyFrom - 1, [4]uint64{0, 0, 0, 1}}} {
		a, b := devices(t, loopback.Config{})
		cfg := Config{Blocks: 3, BlockSize: earlyFrom}
		s, r := pair(t, a, b, cfg, cfg)
		ctx := within(t)
		for n, want := range c.syncs {
			if err := post(t, ctx, s, c.size, byte(n)); err != nil {
				t.Fatal(err)
			}
			if got := s.Stats().Syncs; got != want {
				t.Errorf("%d bytes: %d READs after packet %d, want %d", c.size, got, n, want)
			}
			if n >= 2 {
				continue
			}
			blk, err := r.Receive(ctx) // the block is empty before the last one is sent
			if err != nil || blk.Data[0] != byte(n) {
				t.Fatal(err)
			}
			blk.Release()
		}
	}
}

// The READ is answered before the WRITEs that follow it. Its value for their block, empty, is
// ignored.
func TestEarlySynchronizationIgnoresOwnBlock(t *testing.T) {
	a, b := devices(t, loopback.Config{})
	cfg := Config{Blocks: 2, BlockSize: earlyFrom}
	s, r := pair(t, a, b, cfg, cfg)
	ctx := within(t)
	for n := range 2 {
		if err := post(t, ctx, s, earlyFrom, byte(n)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	if st := s.Stats(); st.Syncs != 1 || s.view[0] != HasData || s.view[1] != HasData {
		t.Errorf("%+v, view %v", st, s.view)
	}
	short, cancel := context.WithTimeout(ctx, 30*time.Millisecond)
	defer cancel()
	if err := post(t, short, s, earlyFrom, 2); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("a third block went into one of two: %v", err)
	}
	for n := range 2 {
		blk, err := r.Receive(ctx)
		if err != nil || blk.Data[0] != byte(n) || blk.Data[earlyFrom-1] != byte(n) {
			t.Fatalf("packet %d: %d to %d, %v", n, blk.Data[0], blk.Data[earlyFrom-1], err)
		}
		blk.Release()
	}
	if err := post(t, ctx, s, earlyFrom, 3); err != nil {
		t.Error(err)
	}
}

// If the queues have no space for a READ beside a block's WRITEs, or no other block can have become
// empty, the READ follows the WRITEs.
func TestEarlySynchronizationNeedsSpace(t *testing.T) {
	for _, c := range []struct {
		name string
		cfg  Config
	}{
		{"send queue", Config{Blocks: 2, BlockSize: earlyFrom, SendDepth: 2, CQDepth: 2}},
		{"completion queue", Config{Blocks: 2, BlockSize: earlyFrom, SendDepth: 9, CQDepth: 1}},
		{"one block", Config{Blocks: 1, BlockSize: earlyFrom}},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := devices(t, loopback.Config{})
			s, _ := pair(t, a, b, c.cfg, Config{Blocks: c.cfg.Blocks, BlockSize: earlyFrom})
			ctx := within(t)
			for range c.cfg.Blocks {
				if err := post(t, ctx, s, earlyFrom, 0); err != nil {
					t.Fatal(err)
				}
			}
			if n := s.Stats().Syncs; n != 0 {
				t.Errorf("%d READs", n)
			}
		})
	}
}
