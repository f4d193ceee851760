package statusbyte

import (
	"context"
	"testing"

	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/internal/drive"
)

// TestNoAllocations covers a block filled, written, received and released, including
// synchronization, with Auto and Manual progress.
func TestNoAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	for _, p := range []roce.Progress{roce.Auto, roce.Manual} {
		t.Run(p.String(), func(t *testing.T) {
			a, b := devices(t, loopback.Config{}, roce.WithProgress(p))
			if p == roce.Manual {
				// Both: a step of the sender's device may be used for a retransmission, and what
				// Write has posted then waits for the next one.
				defer drive.Device(a)()
				defer drive.Device(b)()
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

// BenchmarkBlock moves blocks of 256 bytes from one goroutine to another, three blocks, on a link
// in memory.
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
