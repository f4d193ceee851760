package device

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

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

// reportEvents prints what happens to the port of dev to w until dev is closed: a user whose
// command fails sees it before the error, which does not know it. New addresses do not matter to
// commands: the kernel adds link-local ones seconds after an interface is up.
func reportEvents(w io.Writer, dev *roce.Device) {
	for e := range dev.Events() {
		switch e.Kind {
		case roce.EventGIDChange:
			if !strings.HasPrefix(e.Detail, "removed") {
				continue
			}
		case roce.EventPortErr, roce.EventPortActive, roce.EventMTUChange, roce.EventPortNote:
		default:
			continue
		}
		fmt.Fprintf(w, "gorxe: %s: %v\n", dev.Info().Name, EventText(dev, &e))
	}
}

// EventText describes an event of the port of dev for the user.
func EventText(dev *roce.Device, e *roce.Event) string {
	info := dev.Info()
	switch e.Kind {
	case roce.EventPortActive:
		return "the link is up again"
	case roce.EventPortErr:
		return "the link is down"
	case roce.EventMTUChange:
		return fmt.Sprintf("the MTU is now %d, the path MTU %d", info.MTU, info.ActiveMTU)
	case roce.EventGIDChange:
		return "the addresses have changed: " + e.Detail
	}
	return e.Detail
}
