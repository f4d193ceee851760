package roce

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/gorxe/gorxe/qp"
)

// CQ is a completion queue. Its methods are safe for concurrent use.
type CQ struct {
	dev *Device
	cq  *qp.CQ
	mu  sync.Mutex    // serializes consumers
	sig chan struct{} // signaled by a completion while the CQ is armed; capacity 1

	// Guarded by mu. A closed CQ keeps its memory until its completions have been polled.
	lapsed  bool
	cleanup runtime.Cleanup

	done    chan struct{} // closed by Close
	closed  atomic.Bool
	refs    int          // uses by QPs; guarded by Device.ctl
	needed  atomic.Int64 // see Needed
	srqs    map[*SRQ]int // number of QPs with that SRQ; guarded by Device.ctl
	waiters atomic.Int32 // callers in Wait or WaitSolicited
	anyone  atomic.Int32 // those in Wait, which any completion wakes
	owned   bool         // created by CreateQP; closed with the last QP that uses it
}

// CreateCQ creates a completion queue for n completions, 1 to MaxCQDepth. It must be large enough
// for all completions that have not been polled; otherwise it overruns (ErrCQOverrun), completions
// are lost, and it must be replaced. CQ.Needed returns a size that always suffices. A smaller one
// suffices if the program has fewer work requests outstanding than its queues hold, or if some of
// them complete without a completion (SendWR.Flags without Signaled).
//
// Errors: ErrInvalidDepth, ErrNoMemory, ErrClosed.
func (d *Device) CreateCQ(n int) (*CQ, error) {
	d.ctl.Lock()
	defer d.ctl.Unlock()
	if err := d.open(); err != nil {
		return nil, err
	}
	return d.createCQ(n)
}

// createCQ is CreateCQ on an open device. The caller holds ctl.
func (d *Device) createCQ(n int) (*CQ, error) {
	bytes := 0
	if n > 0 && n <= qp.MaxCQDepth { // otherwise NewCQ returns the error
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

// signal wakes one caller of Wait. Owner, or a caller of Wait that passes a wake-up on.
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
	n := c.cq.Poll(engineWCs(wcs))
	if c.lapsed {
		c.releaseEmpty()
	}
	c.mu.Unlock()
	if tracing.Load() > 0 {
		c.dev.tracedCompletions(wcs[:n])
	}
	return n
}

// Poll stores up to len(wcs) completions in wcs, oldest first, and returns their number. It does
// not block and does not allocate. If the CQ is empty, Poll runs one step of the protocol with
// Manual progress; with Auto progress it yields the processor from time to time, so that a program
// may call it in a loop on any number of cores. Completions can be polled even after Close.
func (c *CQ) Poll(wcs []WC) int {
	n, work := c.poll(wcs)
	if n == 0 && work == 0 && c.dev.yields {
		c.dev.loop.Yield()
		n = c.take(wcs)
	}
	return n
}

// poll is Poll without yielding. work is what a step of the protocol did, 0 for nothing or no step.
func (c *CQ) poll(wcs []WC) (n, work int) {
	if n = c.take(wcs); n > 0 || !c.dev.loop.Driven() {
		return n, 0
	}
	work = c.dev.loop.TryStep()
	return c.take(wcs), work
}

// Len returns the number of completions that can be polled.
func (c *CQ) Len() int { return c.cq.Len() }

// Depth returns the number of completions that the CQ holds.
func (c *CQ) Depth() int { return c.cq.Depth() }

// Needed returns the depth with which the CQ cannot overrun, as long as it is polled before new
// work requests are posted: the sum of the depths of all queues that complete into it,
// QPConfig.SendDepth and RecvDepth of each QP, or instead of RecvDepth once that of their SRQ. If
// it is larger than Depth, the program must limit its outstanding work requests.
func (c *CQ) Needed() int { return int(c.needed.Load()) }

// serve adds a queue of the given depth, or one more QP with an SRQ, to the users of the CQ. With
// negative numbers it removes one. The caller holds Device.ctl.
func (c *CQ) serve(depth int, s *SRQ, qps int) {
	c.refs += qps
	if s != nil { // QPs share its receives
		if c.srqs == nil {
			c.srqs = map[*SRQ]int{}
		}
		before := c.srqs[s]
		if c.srqs[s] += qps; c.srqs[s] == 0 {
			delete(c.srqs, s)
			depth = -s.srq.Depth()
		} else if before == 0 {
			depth = s.srq.Depth()
		}
	}
	c.needed.Add(int64(depth))
}

// Err returns ErrClosed, ErrCQOverrun, the error of Device.Err, or nil.
func (c *CQ) Err() error {
	switch {
	case c.cq.Overrun():
		return fmt.Errorf("%w (it holds %d, and its QPs can have %d work requests outstanding)",
			ErrCQOverrun, c.Depth(), c.Needed())
	case c.closed.Load():
		return ErrClosed
	}
	return c.dev.Err()
}

// Wait is like Poll, but blocks until there is a completion. It returns an error only if there is
// none: ctx's error, ErrClosed, ErrCQOverrun or that of Device.Err; ErrVirtualTime on a device with
// Expert.Clock and without Expert.Wait. With Manual progress it runs the protocol while it waits.
//
// The end of ctx ends only the wait. The work requests remain outstanding, and the device uses
// their memory, until their completions were polled: wait again, or end them with QP.Cancel.
func (c *CQ) Wait(ctx context.Context, wcs []WC) (int, error) { return c.wait(ctx, wcs, false) }

// WaitSolicited is like Wait, but only a failed or a solicited completion wakes it. The completion
// of a receive is solicited if the peer posted the SEND or WRITE with immediate with the flag
// Solicited. Completions that are present at the call, or at the wake-up, are returned, solicited
// or not.
func (c *CQ) WaitSolicited(ctx context.Context, wcs []WC) (int, error) {
	return c.wait(ctx, wcs, true)
}

func (c *CQ) wait(ctx context.Context, wcs []WC, solicited bool) (int, error) {
	if len(wcs) == 0 {
		return 0, fmt.Errorf("%w: Wait needs a slice of at least one completion", ErrInvalid)
	}
	if c.dev.virtual {
		return c.waitVirtual(ctx, wcs)
	}
	if c.dev.manual {
		// One more step sends the ACK for what was received, which must not wait for the caller's
		// next call. Callers of Drive call soon, and may post a reply before.
		defer c.dev.loop.TryStep()
	}
	if n := c.pollFirst(wcs); n > 0 {
		return n, nil
	}
	c.enter(solicited)
	defer c.leave(solicited)
	c.arm()
	// A completion that came before the CQ was armed did not signal.
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

// waitVirtual is wait in virtual time.
func (c *CQ) waitVirtual(ctx context.Context, wcs []WC) (int, error) {
	for {
		if n, _ := c.poll(wcs); n > 0 {
			return n, nil
		}
		if err := c.Err(); err != nil {
			return c.last(wcs, err)
		}
		err := c.dev.waitVirtual(ctx, func() bool { return c.cq.Len() > 0 || c.Err() != nil })
		if err != nil {
			return 0, err
		}
	}
}

// unarmed is how many steps Wait runs before it arms the CQ, with Manual progress and spinning.
// Arming and signaling cost as much as several steps, and with many work requests outstanding one
// or two steps usually suffice.
const unarmed = 8

// pollFirst polls repeatedly, as long as that may be cheaper than waiting.
func (c *CQ) pollFirst(wcs []WC) (n int) {
	steps := 1
	if c.dev.loop.Driven() && c.dev.loop.Spins() {
		steps = unarmed
	}
	for ; steps > 0 && n == 0; steps-- {
		n, _ = c.poll(wcs)
	}
	return n
}

// last polls once more before an error is returned: completions come first.
func (c *CQ) last(wcs []WC, err error) (int, error) {
	if n := c.take(wcs); n > 0 {
		return n, nil
	}
	return 0, err
}

// block returns when the armed CQ is signaled, ctx is done, or the CQ or the device is closed.
func (c *CQ) block(ctx context.Context) {
	if c.dev.loop.Driven() {
		c.dev.loop.Await(ctx, c.sig, func() bool { return c.signaled() || c.Err() != nil })
		return
	}
	select {
	case <-c.sig:
	case <-ctx.Done():
	case <-c.done:
	case <-c.dev.done:
	}
}

// signaled consumes the signal of the armed CQ, and reports whether there was one.
func (c *CQ) signaled() bool {
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

// leave passes the wake-up on: one signal may announce completions for several callers, and a
// caller that gives up may have consumed it.
func (c *CQ) leave(solicited bool) {
	if !solicited {
		c.anyone.Add(-1)
	}
	if c.waiters.Add(-1) > 0 {
		c.signal()
		if c.dev.loop.Driven() {
			c.dev.loop.Wake() // the next caller may be the owner, asleep in the port
		}
	}
}

// Close destroys the CQ. Callers of Wait return with ErrClosed. It returns ErrInUse while QPs use
// the CQ. Closing twice is harmless.
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

// shut destroys the CQ. The caller holds Device.ctl.
func (c *CQ) shut() error {
	delete(c.dev.cqs, c)
	c.closed.Store(true)
	close(c.done)
	c.signal() // wakes a caller that waits while another one is the owner; each wakes the next
	// After the command no step can add a completion any more. It also wakes an owner that sleeps
	// in Wait for this CQ.
	err := c.dev.do(func(qp.Time) { delete(c.dev.engineCQs, c.cq) })
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lapsed = true
	c.cleanup = lapse(c.dev.mem.account, c, c.bytes())
	c.releaseEmpty()
	return err
}

// bytes returns the memory of the queue.
func (c *CQ) bytes() int { return qp.CQFootprint(c.cq.Depth()) }

// releaseEmpty releases the memory of a closed CQ whose completions have been polled. The caller
// holds mu.
func (c *CQ) releaseEmpty() {
	if c.lapsed && c.cq.Len() == 0 {
		c.lapsed = false
		c.cleanup.Stop()
		c.dev.mem.collected(c.bytes())
		c.cq.Release()
	}
}
