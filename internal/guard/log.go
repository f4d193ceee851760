package guard

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/gorxe/gorxe/internal/limit"
)

// Limits of the log. limit.Rate counts events per second; lines are counted per 10 seconds.
const (
	lineUnit     = 10
	linesPerUnit = 1 // of one prefix
	lineBurst    = 8
	totalPerUnit = 10
	totalBurst   = 40
)

func newLines(seed uint64) *limit.Rate {
	return limit.NewRate(limit.RateConfig{
		PerPrefix: limit.Budget{PerSecond: linesPerUnit, Burst: lineBurst},
		Total:     limit.Budget{PerSecond: totalPerUnit, Burst: totalBurst},
		Seed:      seed,
	})
}

// newSessionLines returns the limit of lines about sessions without an error.
func newSessionLines(seed uint64) *limit.Rate {
	return limit.NewRate(limit.RateConfig{
		PerPrefix: limit.Budget{PerSecond: 1, Burst: 100},
		Total:     limit.Budget{PerSecond: 5, Burst: 500},
		Seed:      seed,
	})
}

// ShowSession reports whether a line about a session of the peer may be printed now.
func (g *Guard) ShowSession(peer netip.Addr) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.sessions.Allow(int64(time.Since(g.start)), peer, 1) {
		return true
	}
	g.total++
	return false
}

// A Log receives the errors of peers.
type Log func(peer netip.AddrPort, err error)

// Limit returns a Log that passes a limited number of errors on to log. The first error after
// others were left out tells their number.
func (g *Guard) Limit(log Log) Log {
	return func(peer netip.AddrPort, err error) {
		if hidden, ok := g.line(time.Now(), peer.Addr()); ok {
			if hidden > 0 {
				err = fmt.Errorf("%w (%d more messages were not shown)", err, hidden)
			}
			log(peer, err)
		}
	}
}

// line reports whether a line about a peer may be logged now, and how many lines were left out
// before it.
func (g *Guard) line(now time.Time, peer netip.Addr) (hidden uint64, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.lines.Allow(int64(now.Sub(g.start)/lineUnit), peer, 1) {
		g.hidden++
		g.total++
		return 0, false
	}
	hidden, g.hidden = g.hidden, 0
	return hidden, true
}
