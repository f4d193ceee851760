package roce

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/gorxe/gorxe/qp"
)

// CQ is a completion queue. Its methods are safe for concurrent use.
type CQ struct {
	dev *Device
	cq  *qp.CQ
	mu  sync.Mutex    // one consumer at a time
	sig chan struct{} // a completion came while armed; capacity 1

	done    chan struct{} // closed by Close
	closed  atomic.Bool
	refs    int          // uses by QPs; under Device.ctl
	waiters atomic.Int32 // callers of Wait
	anyone  atomic.Int32 // those of them that any completion wakes, not only a solicited one
}

// CreateCQ makes a completion queue for n completions. It has to hold those of all work requests that may be
// outstanding on its QPs, or it overruns and stays useless (ErrCQOverrun).
func (d *Device) CreateCQ(n int) (*CQ, error) {
	d.ctl.Lock()
	defer d.ctl.Unlock()
	bytes := 0
	if n > 0 && n <= qp.MaxCQDepth { // else NewCQ says what is wrong
		bytes = qp.CQFootprint(n)
	}
	if err := d.mem.take(bytes, "a CQ of this depth"); err != nil {
		return nil, fmt.Errorf("roce: create a CQ: %w", err)
	}
	inner, err := qp.NewCQ(n)
	if err != nil {
		return nil, fmt.Errorf("roce: create a CQ: %w", err)
	}
	c := &CQ{dev: d, cq: inner, sig: make(chan struct{}, 1), done: make(chan struct{})}
	inner.SetNotify(c.signal)
	if err := d.do(func(qp.Time) { d.engineCQs[inner] = c }); err != nil {
		d.mem.give(bytes)
		return nil, err
	}
	d.cqs[c] = struct{}{}
	return c, nil
}

// signal wakes one caller of Wait. The shard's thread calls it, and Wait's callers to hand a wake-up on.
func (c *CQ) signal() {
	select {
	case c.sig <- struct{}{}:
	default:
	}
}

func (c *CQ) take(wcs []WC) int {
	if c.cq.Len() == 0 {
		return 0
	}
	c.mu.Lock()
	n := c.cq.Poll(wcs)
	c.mu.Unlock()
	return n
}

// Poll takes up to len(wcs) completions and returns their number, at once. With Manual progress an empty CQ makes
// it drive the device for one turn. It does not allocate. What completed before a Close can still be polled after it.
func (c *CQ) Poll(wcs []WC) int {
	n := c.take(wcs)
	if n > 0 || !c.dev.manual {
		return n
	}
	c.dev.loop.TryStep()
	return c.take(wcs)
}

// Len returns how many completions wait to be polled.
func (c *CQ) Len() int { return c.cq.Len() }

// Err returns ErrClosed, ErrCQOverrun, or nil.
func (c *CQ) Err() error {
	switch {
	case c.cq.Overrun():
		return ErrCQOverrun
	case c.closed.Load() || c.dev.closing.Load():
		return ErrClosed
	}
	return nil
}

// Wait is Poll that blocks until there is a completion, ctx is done (its error is returned), or the CQ is closed or
// has overrun. Completions that are there come before any error. With Manual progress the caller drives the device
// meanwhile; a peer's later requests wait until the next call.
func (c *CQ) Wait(ctx context.Context, wcs []WC) (int, error) { return c.wait(ctx, wcs, false) }

// WaitSolicited is Wait that only a solicited completion wakes, or a failed one: that of a SEND or a WRITE with
// immediate that the peer posted with the Solicited flag. Others gather unnoticed meanwhile and are handed out with it, and those
// that are there already are handed out at once.
func (c *CQ) WaitSolicited(ctx context.Context, wcs []WC) (int, error) { return c.wait(ctx, wcs, true) }

func (c *CQ) wait(ctx context.Context, wcs []WC, solicited bool) (int, error) {
	if len(wcs) == 0 {
		return 0, fmt.Errorf("%w: Wait needs room for at least one completion", ErrInvalid)
	}
	if c.dev.virtual {
		if n := c.Poll(wcs); n > 0 {
			return n, nil
		}
		return 0, ErrVirtualTime
	}
	if c.dev.manual {
		// One more turn after the one that brought the completion: the ACK that is owed for it must not wait until
		// the caller comes again.
		defer c.dev.loop.TryStep()
	}
	if n := c.pollFirst(wcs); n > 0 {
		return n, nil
	}
	c.enter(solicited)
	defer c.leave(solicited)
	c.arm()
	// What came before the CQ was armed rang no bell.
	for {
		if n := c.take(wcs); n > 0 {
			return n, nil
		}
		if err := c.Err(); err != nil {
			return c.last(wcs, err)
		}
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		c.block(ctx)
		c.arm()
	}
}

// unarmed is how many turns Wait makes before it arms the CQ, if it drives the device and may spin. To arm it, and to hear of the signal,
// costs as much as several turns; a program that keeps many work requests under way mostly waits for one or two.
const unarmed = 8

// pollFirst is Poll, again and again as long as that may be cheaper than to wait.
func (c *CQ) pollFirst(wcs []WC) (n int) {
	turns := 1
	if c.dev.manual && c.dev.loop.Spins() {
		turns = unarmed
	}
	for ; turns > 0 && n == 0; turns-- {
		n = c.Poll(wcs)
	}
	return n
}

// last looks once more before an error is returned: completions come first.
func (c *CQ) last(wcs []WC, err error) (int, error) {
	if n := c.take(wcs); n > 0 {
		return n, nil
	}
	return 0, err
}

// block returns when the armed CQ was signalled, or for a reason that wait finds by itself.
func (c *CQ) block(ctx context.Context) {
	if c.dev.manual {
		c.dev.loop.Await(ctx, c.sig, func() bool { return c.signalled() || c.Err() != nil })
		return
	}
	select {
	case <-c.sig:
	case <-ctx.Done():
	case <-c.done:
	case <-c.dev.done:
	}
}

// signalled tells, once, whether the armed CQ got its completion.
func (c *CQ) signalled() bool {
	select {
	case <-c.sig:
		return true
	default:
		return false
	}
}

func (c *CQ) arm() { c.cq.Arm(c.anyone.Load() == 0) }

func (c *CQ) enter(solicited bool) {
	c.waiters.Add(1)
	if !solicited {
		c.anyone.Add(1)
	}
}

// leave hands the wake-up on: one signal may stand for completions that several callers wait for, and a caller that
// gives up may have swallowed it.
func (c *CQ) leave(solicited bool) {
	if !solicited {
		c.anyone.Add(-1)
	}
	if c.waiters.Add(-1) > 0 {
		c.signal()
		if c.dev.manual {
			c.dev.loop.Wake() // the next one may be the shard's owner, asleep in the port
		}
	}
}

// Close destroys the CQ; callers of Wait get ErrClosed. It gives ErrInUse while QPs complete into it. Closing twice
// is harmless.
func (c *CQ) Close() error {
	c.dev.ctl.Lock()
	defer c.dev.ctl.Unlock()
	if c.closed.Load() {
		return nil
	}
	if c.refs > 0 {
		return fmt.Errorf("%w (%d QPs complete into this CQ)", ErrInUse, c.refs)
	}
	return c.shut()
}

// shut destroys the CQ; the caller holds Device.ctl.
func (c *CQ) shut() error {
	delete(c.dev.cqs, c)
	c.dev.mem.give(qp.CQFootprint(c.cq.Depth()))
	c.closed.Store(true)
	close(c.done)
	c.signal() // callers that stand by while another drives the shard; each wakes the next
	// The round trip ends every turn that may still push a completion, and it wakes an owner that
	// sleeps in Wait for this CQ.
	return c.dev.do(func(qp.Time) { delete(c.dev.engineCQs, c.cq) })
}
