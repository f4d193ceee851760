package device

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/xdp"
)

// checkInterval is the time between two checks for a removed interface.
const checkInterval = time.Second

// WhilePresent returns a context that ends when dev's interface is removed. Its cause is then
// xdp.ErrGone.
func WhilePresent(ctx context.Context, dev *roce.Device) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		ticker := time.NewTicker(checkInterval)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			info := dev.Info()
			if info.Up {
				continue
			}
			// The device reports a removed interface as a link that is down.
			if _, err := xdp.Probe(info.Name, 0); errors.Is(err, xdp.ErrNoInterface) {
				cancel(fmt.Errorf("%s: %w", info.Name, xdp.ErrGone))
			}
		}
	}()
	return ctx, func() { cancel(nil) }
}
