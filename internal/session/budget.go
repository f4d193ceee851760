package session

import (
	"fmt"
	"net/netip"
	"runtime/debug"
	"sync"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/guard"
	"github.com/gorxe/gorxe/internal/limit"
)

// Budget limits the memory that all sessions of a server use together. The sessions of one prefix
// (see package limit) get no more than they leave for all others, so one prefix gets at most half.
// It is safe for concurrent use. A nil Budget has no limit.
type Budget struct {
	mu      sync.Mutex
	used    *limit.Shares
	size    int64
	garbage int64 // bytes of ended sessions since the last collection
}

// collectParts is the part of a budget that ended sessions may keep as garbage.
const collectParts = 8

// NewBudget returns a budget of size bytes.
func NewBudget(size int64) *Budget { return &Budget{used: limit.NewShares(0, size), size: size} }

// Take reserves n bytes for a peer until the caller calls release.
func (b *Budget) Take(peer netip.Addr, n int64) (release func(), err error) {
	if b == nil {
		return func() {}, nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.used.TakeFair(peer, n) {
		own, total := b.used.Used(peer)
		left := max(0, (b.size-total-own)/2)
		return nil, fmt.Errorf("%w: the session needs %s for buffers, but the server has only %s left for "+
			"clients in %v: use smaller messages or fewer queue pairs, or try again later",
			guard.ErrBusy, cli.FormatSize(n), cli.FormatSize(left), limit.Prefix(peer))
	}
	return sync.OnceFunc(func() {
		b.mu.Lock()
		b.used.Return(peer, n)
		b.mu.Unlock()
	}), nil
}

// collect tells b that a session of n bytes has ended. If much garbage has accumulated, it returns
// the memory to the operating system. Otherwise an idle server would keep it until the runtime
// collects garbage by itself, and clients that come and go would take more than the budget.
func (b *Budget) collect(n int64) {
	if b == nil {
		return
	}
	b.mu.Lock()
	b.garbage += n
	full := b.garbage >= b.size/collectParts
	if full {
		b.garbage = 0
	}
	b.mu.Unlock()
	if full {
		debug.FreeOSMemory()
	}
}

// Used returns the bytes that all sessions use.
func (b *Budget) Used() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, total := b.used.Used(netip.Addr{})
	return total
}
