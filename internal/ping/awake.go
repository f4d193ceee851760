package ping

import (
	"runtime"
	"sync"
	"time"
)

const (
	// awakeTime is how long a server polls after an empty message, because a ping follows it.
	awakeTime = time.Millisecond

	pollShare = 20                    // all sessions together poll for at most 1/20 of the time,
	pollBurst = 50 * time.Millisecond // but after a pause for so long at once
)

// pollTime is the CPU time in which the sessions of a server may poll for pings, so that clients
// cannot keep a CPU busy. The zero value is ready to use.
type pollTime struct {
	mu   sync.Mutex
	full time.Time // when all of pollBurst is available again
}

// take takes d at the time now. It returns false if not so much is left. On a single CPU there is
// none, because a server that polls would stop a client on the same host.
func (p *pollTime) take(now time.Time, d time.Duration) bool {
	if runtime.GOMAXPROCS(0) < 2 {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	full := p.full
	if full.Before(now) {
		full = now
	}
	full = full.Add(pollShare * d)
	if full.Sub(now) > pollShare*pollBurst {
		return false
	}
	p.full = full
	return true
}

// giveBack returns time that was taken and not used.
func (p *pollTime) giveBack(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.full = p.full.Add(-pollShare * d)
}
