package peerio

import (
	"context"
	"time"
)

// Bound limits the next read or write of a connection. set is the connection's SetReadDeadline or
// SetWriteDeadline. The deadline is the context's or limit from now, whichever is earlier; a limit
// of 0 means none. When ctx ends, the call in progress fails with os.ErrDeadlineExceeded.
//
// The caller must call release after the read or write.
func Bound(ctx context.Context, limit time.Duration, set func(time.Time) error) (release func()) {
	var deadline time.Time
	if limit > 0 {
		deadline = time.Now().Add(limit)
	}
	if d, ok := ctx.Deadline(); ok && (deadline.IsZero() || d.Before(deadline)) {
		deadline = d
	}
	_ = set(deadline) // if the connection is closed, the read or write that follows fails
	expired := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(expired)
		_ = set(time.Unix(1, 0))
	})
	return func() {
		if !stop() {
			<-expired // otherwise the function could still cut the next call short
		}
	}
}
