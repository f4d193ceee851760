package qp

import (
	"fmt"
	"sync/atomic"

	"github.com/gorxe/gorxe/internal/fence"
)

// CQ is a completion queue: a ring that the engine fills and one consumer at a time polls. All QPs
// of a CQ belong to one engine.
type CQ struct {
	ring
	wcs      []WC
	mask     uint32
	depth    uint32
	armed    atomic.Uint32 // what the consumer waits for: armNone, armSolicited or armAny
	overrun  atomic.Bool
	notify   func()
	freeFrom uint32 // the engine's copy of tail, which saves reading the consumer's cache line
}

const (
	armNone = iota
	armSolicited
	armAny
)

// NewCQ returns a CQ with exactly depth entries, 1 to MaxCQDepth.
func NewCQ(depth int) (*CQ, error) {
	if depth < 1 || depth > MaxCQDepth {
		return nil, fmt.Errorf("%w: CQ of %d entries, want 1 to %d", ErrInvalidDepth, depth,
			MaxCQDepth)
	}
	n := slots(depth)
	return &CQ{wcs: make([]WC, n), mask: n - 1, depth: uint32(depth)}, nil
}

// SetNotify sets the function that the owner calls when an armed CQ gets a completion or overruns.
// Set it before use.
func (c *CQ) SetNotify(f func()) { c.notify = f }

// Depth returns the number of completions that the CQ holds.
func (c *CQ) Depth() int { return int(c.depth) }

// Len returns the number of completions to poll.
func (c *CQ) Len() int { return int(c.used()) }

// Overrun reports whether completions were lost because the CQ was full. This is permanent (IBA
// 10.2.2.3): destroy the CQ and create a larger one.
func (c *CQ) Overrun() bool { return c.overrun.Load() }

// Release discards the completions and releases the memory of the CQ, which no QP may use any more.
// No other goroutine may poll meanwhile; later polls return none.
func (c *CQ) Release() {
	c.tail.Store(c.head.Load())
	c.wcs = nil
}

// Poll copies up to len(wcs) completions to wcs, oldest first, and returns their number. Any
// goroutine may call it, but only one at a time.
func (c *CQ) Poll(wcs []WC) int {
	tail := c.tail.Load()
	n := min(c.head.Load()-tail, uint32(len(wcs)))
	for i := range n {
		wcs[i] = c.wcs[(tail+i)&c.mask]
	}
	if n > 0 {
		// Comes before any post of the consumer: an engine that sees the post also sees the space
		// for its completion.
		fence.Store(&c.tail, tail+n)
	}
	return int(n)
}

// Arm requests one call of the notify function at the next completion, or with solicitedOnly at the
// next solicited or failed one (IBA 11.4.2.2). A completion that came before Arm does not count, so
// poll once more after it.
func (c *CQ) Arm(solicitedOnly bool) {
	want := uint32(armAny)
	if solicitedOnly {
		want = armSolicited
	}
	for {
		old := c.armed.Load()
		if old >= want || c.armed.CompareAndSwap(old, want) {
			return
		}
	}
}

// push adds a completion. It returns false if the CQ is full. Only the owner may call it.
func (c *CQ) push(wc *WC, solicited bool) bool {
	head := c.head.Load()
	if head-c.freeFrom >= c.depth {
		if c.freeFrom = c.tail.Load(); head-c.freeFrom >= c.depth {
			c.overrun.Store(true)
			c.wake(true)
			return false
		}
	}
	c.wcs[head&c.mask] = *wc
	c.head.Store(head + 1)
	c.wake(solicited || wc.Status != Success)
	return true
}

// wake calls notify if the consumer armed the CQ for this kind of completion. The consumer arms and
// then reads head. The engine moves head and then reads armed. At least one of them sees the
// other's store.
func (c *CQ) wake(solicited bool) {
	armed := c.armed.Load()
	if armed == armNone || (armed == armSolicited && !solicited) {
		return
	}
	c.armed.Store(armNone)
	if c.notify != nil {
		c.notify()
	}
}
