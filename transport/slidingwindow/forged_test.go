package slidingwindow

import (
	"context"
	"net/netip"
	"testing"

	"github.com/gorxe/gorxe/transport/internal/accept/accepttest"
)

// Forged requests neither end Accept nor keep another sender waiting.
func TestForgedRequests(t *testing.T) {
	c := Config{Blocks: 4, BlockSize: 1000}
	tr := accepttest.Transport[Config, *Listener, *Sender, *Receiver]{
		Private: protocol.Put(nil, c.sizes()), Config: c, Listen: Listen, Dial: Init,
		Refused: func(c Config, f func(netip.AddrPort, error)) Config { c.Refused = f; return c },
		Send:    func(ctx context.Context, s *Sender, b []byte) error { return s.Write(ctx, b) },
		Receive: func(ctx context.Context, r *Receiver) (string, error) {
			b, err := r.Receive(ctx)
			if err != nil {
				return "", err
			}
			return string(b.Data), b.Release()
		},
	}
	tr.Forged(t)
}
