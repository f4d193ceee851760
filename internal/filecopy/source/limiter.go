package source

import (
	"context"
	"sync"
	"time"
)

// limiter limits a rate. The nil limiter does not.
type limiter struct {
	perSecond float64 // bytes

	mu   sync.Mutex
	free time.Time // when the bytes that were taken have been paid
}

func newLimiter(perSecond int64) *limiter {
	if perSecond <= 0 {
		return nil
	}
	return &limiter{perSecond: float64(perSecond), free: time.Now()}
}

// wait takes n bytes and waits until all bytes that were taken before are paid.
func (l *limiter) wait(ctx context.Context, n int) error {
	if l == nil || n == 0 {
		return ctx.Err()
	}
	l.mu.Lock()
	now := time.Now()
	if l.free.Before(now) {
		l.free = now
	}
	delay := l.free.Sub(now)
	l.free = l.free.Add(time.Duration(float64(n) / l.perSecond * 1e9))
	l.mu.Unlock()
	if delay <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(delay)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
