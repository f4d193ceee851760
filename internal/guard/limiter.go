package guard

import (
	"net/netip"
	"sync"

	"github.com/gorxe/gorxe/internal/limit"
)

// Limiter limits how many peers a server serves at a time and divides this number among the
// prefixes (see package limit) of the peers. A prefix gets no more slots than it leaves for all
// others. One prefix therefore gets at most half of the slots, and a new one still finds some. It
// is safe for concurrent use.
type Limiter struct {
	mu   sync.Mutex
	used *limit.Shares
}

// NewLimiter returns a limiter with n slots.
func NewLimiter(n int) *Limiter { return &Limiter{used: limit.NewShares(0, int64(n))} }

// Take takes a slot for a peer until the caller calls release. It returns false if the peer gets
// none at the moment.
func (l *Limiter) Take(peer netip.Addr) (release func(), ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.used.TakeFair(peer, 1) {
		return nil, false
	}
	return sync.OnceFunc(func() {
		l.mu.Lock()
		l.used.Return(peer, 1)
		l.mu.Unlock()
	}), true
}
