package demo

import (
	"context"
	"runtime"
	"time"

	"github.com/gorxe/gorxe/roce"
)

const (
	yieldEvery = 64                     // empty polls between calls of runtime.Gosched
	checkEvery = 256                    // empty polls between checks of clock and context
	spinFor    = 200 * time.Microsecond // of empty polls before a loop sleeps
	nap        = time.Millisecond       // longest sleep
	patience   = 30 * time.Second       // of waiting before a loop gives up
)

// poller decides what a loop does after empty polls: poll again, sleep, or give up. The zero value
// is ready. Reset it after each poll that found something.
type poller struct {
	polls int
	since time.Time // approximate time of the first empty poll
	slow  bool      // the loop sleeps
}

// empty records an empty poll and reports whether the loop should sleep.
func (p *poller) empty(ctx context.Context) (sleep bool, err error) {
	if p.polls++; p.polls%yieldEvery == 0 {
		runtime.Gosched()
	}
	if !p.slow && p.polls%checkEvery != 0 {
		return false, nil
	}
	if ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	now := time.Now()
	if p.since.IsZero() {
		p.since = now
	}
	idle := now.Sub(p.since)
	if idle > patience {
		return false, errStalled
	}
	p.slow = idle > spinFor
	return p.slow, nil
}

// waitBriefly waits for completions, but not longer than nap. With A's CQ it drives A meanwhile.
func waitBriefly(ctx context.Context, cq *roce.CQ, wcs []roce.WC) (int, error) {
	short, cancel := context.WithTimeout(ctx, nap)
	defer cancel()
	n, err := cq.Wait(short, wcs)
	if short.Err() != nil {
		err = nil // the loop checks ctx
	}
	return n, err
}
