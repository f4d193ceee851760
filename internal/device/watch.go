package device

import (
	"context"
	"errors"
	"fmt"

	"github.com/gorxe/gorxe/roce"
)

// WhilePresent returns a context that ends when dev's interface is removed, or the node service
// that dev has joined ends. Its cause then wraps roce.ErrGone or roce.ErrServiceEnded. The caller
// calls the CancelFunc before it closes dev.
func WhilePresent(ctx context.Context, dev *roce.Device) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-ctx.Done():
		case <-dev.Done():
			err := dev.Err()
			if errors.Is(err, roce.ErrGone) || errors.Is(err, roce.ErrServiceEnded) {
				cancel(fmt.Errorf("%s: %w", dev.Info().Name, err))
			}
		}
	}()
	return ctx, func() { cancel(nil) }
}
