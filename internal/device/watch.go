package device

import (
	"context"
	"errors"
	"fmt"

	"github.com/gorxe/gorxe/roce"
)

// WhilePresent returns a context that ends when dev's interface is removed. Its cause then wraps
// roce.ErrGone. The caller calls the CancelFunc before it closes dev.
func WhilePresent(ctx context.Context, dev *roce.Device) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-ctx.Done():
		case <-dev.Done():
			if err := dev.Err(); errors.Is(err, roce.ErrGone) {
				cancel(fmt.Errorf("%s: %w", dev.Info().Name, err))
			}
		}
	}()
	return ctx, func() { cancel(nil) }
}
