package demo

import (
	"context"
	"runtime"
	"time"

	"github.com/gorxe/gorxe/roce"
)

const (
	yieldEvery = 64                     // polls in vain, before another goroutine may have the core
	lookEvery  = 256                    // polls in vain, between two looks at the clock and the context
	spinFor    = 200 * time.Microsecond // before a loop sleeps: others on this machine have work too
	nap        = time.Millisecond       // that a loop sleeps at most before it looks again
	patience   = 30 * time.Second       // for anything that has to come
)

// idler decides what a loop does that polls in vain: it spins, then it sleeps, in the end it gives up. Its zero value is
// ready; so it is to be made after each find.
type idler struct {
	polls int
	since time.Time // roughly when polling began to be in vain
	tired bool
}

// vain takes note of a poll that found nothing. It tells whether the loop should sleep now.
func (i *idler) vain(ctx context.Context) (sleep bool, err error) {
	if i.polls++; i.polls%yieldEvery == 0 {
		runtime.Gosched()
	}
	if !i.tired && i.polls%lookEvery != 0 {
		return false, nil
	}
	if ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	now := time.Now()
	if i.since.IsZero() {
		i.since = now
	}
	idle := now.Sub(i.since)
	if idle > patience {
		return false, errStalled
	}
	i.tired = idle > spinFor
	return i.tired, nil
}

// doze waits on a CQ for a nap's time. With A's, which has manual progress, it drives A meanwhile.
func doze(ctx context.Context, cq *roce.CQ, wcs []roce.WC) (int, error) {
	short, cancel := context.WithTimeout(ctx, nap)
	defer cancel()
	n, err := cq.Wait(short, wcs)
	if short.Err() != nil {
		err = nil // the loop looks at ctx itself
	}
	return n, err
}
