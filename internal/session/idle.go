package session

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gorxe/gorxe/roce"
)

// ErrIdle means that a server has ended a session because the client sent nothing.
var ErrIdle = errors.New("the session was idle for too long")

// IdleTimeout is the time limit of gorxe up. Clients that are silent for longer on purpose close
// the connection and open it again.
const IdleTimeout = 2 * time.Minute

// checksPerLimit is how often WatchIdle looks at the queue pairs within its limit.
const checksPerLimit = 4

// WatchIdle returns a context that ends when no queue pair has accepted a packet from its peer for
// the time limit, with a cause that wraps ErrIdle. A limit of 0 means none. qps returns the queue
// pairs; it is called in another goroutine.
func WatchIdle(ctx context.Context, limit time.Duration, qps func() []*roce.QP) (
	context.Context, context.CancelFunc) {
	if limit == 0 {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		ticker := time.NewTicker(limit / checksPerLimit)
		defer ticker.Stop()
		last := activity(qps())
		for same := 0; same < checksPerLimit; same++ {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			if now := activity(qps()); now != last {
				last, same = now, 0
			}
		}
		cancel(fmt.Errorf("%w: no packet for %v", ErrIdle, limit))
	}()
	return ctx, func() { cancel(nil) }
}

// LimitTime returns a context that ends after a time limit, with the cause err. Unlike a context
// with a deadline, it is canceled, so that reads and writes that it ends return the cause.
func LimitTime(ctx context.Context, limit time.Duration, err error) (
	context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(limit, func() { cancel(err) })
	return ctx, func() {
		timer.Stop()
		cancel(nil)
	}
}

// activity returns a number that changes when a queue pair accepts a packet or is added.
func activity(qps []*roce.QP) (sum uint64) {
	for _, q := range qps {
		n, err := q.Activity()
		if err == nil {
			sum += n + 1
		}
	}
	return sum
}
