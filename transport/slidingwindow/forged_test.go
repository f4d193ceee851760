package slidingwindow

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/internal/accept/accepttest"
	"github.com/gorxe/gorxe/transport/internal/blocks"
)

// Forged requests neither end Accept nor keep another sender waiting.
func TestForgedRequests(t *testing.T) {
	cfg := Config{Blocks: 4, BlockSize: 1000}
	tr := accepttest.Transport[*Listener, *Sender, *Receiver]{
		Private: protocol.Put(nil, blocks.Sizes{Blocks: cfg.Blocks, Size: cfg.BlockSize}),
		Listen: func(dev *roce.Device, addr netip.AddrPort,
			refused func(netip.AddrPort, error)) (*Listener, error) {
			c := cfg
			c.Refused = refused
			return Listen(dev, addr, c)
		},
		Dial: func(ctx context.Context, dev *roce.Device, addr netip.AddrPort) (*Sender, error) {
			return Init(ctx, dev, addr, cfg)
		},
		Transfer: func(ctx context.Context, s *Sender, r *Receiver) error {
			if err := s.Write(ctx, []byte("data")); err != nil {
				return err
			}
			b, err := r.Receive(ctx)
			if err != nil || string(b.Data) != "data" {
				return fmt.Errorf("Receive() = %q, %v", b.Data, err)
			}
			_ = b.Release()
			return nil
		},
	}
	tr.Forged(t)
}
