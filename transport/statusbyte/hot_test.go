package statusbyte

import (
	"context"
	"testing"

	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/internal/crank"
)

// TestNoAllocations: a block filled, written, received and released, synchronisation included, both
// ends; on devices that work by themselves, and on such that are driven.
func TestNoAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	for _, p := range []roce.Progress{roce.Auto, roce.Manual} {
		t.Run(p.String(), func(t *testing.T) {
			a, b := devices(t, loopback.Config{}, roce.WithProgress(p))
			if p == roce.Manual {
				// Both: a turn of the sender's may be spent on repeating what is overdue, and what
				// Write has posted then waits for the next one.
				defer crank.Turn(a)()
				defer crank.Turn(b)()
			}
			cfg := Config{Blocks: 3, BlockSize: 256}
			s, r := pair(t, a, b, cfg, cfg)
			ctx := within(t)
			data := make([]byte, 256)
			if n := testing.AllocsPerRun(100, func() {
				if err := s.Write(ctx, 5, data); err != nil {
					t.Fatal(err)
				}
				blk, err := r.Receive(ctx)
				if err != nil {
					t.Fatal(err)
				}
				blk.Release()
			}); n != 0 {
				t.Errorf("a block allocates %v times", n)
			}
		})
	}
}

// BenchmarkBlock is a block of 256 bytes from one thread to another, three blocks, on an in-memory
// link.
func BenchmarkBlock(b *testing.B) {
	x, y := devices(b, loopback.Config{})
	cfg := Config{Blocks: 3, BlockSize: 256}
	s, r := pair(b, x, y, cfg, cfg)
	ctx := context.Background()
	data := make([]byte, 256)
	b.SetBytes(256)
	go func() {
		for range b.N {
			if s.Write(ctx, 0, data) != nil {
				return
			}
		}
	}()
	for range b.N {
		blk, err := r.Receive(ctx)
		if err != nil {
			b.Fatal(err)
		}
		blk.Release()
	}
}
