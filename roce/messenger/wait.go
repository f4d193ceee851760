package messenger

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/gorxe/gorxe/roce"
)

// Callers wait for completions without a goroutine of the connection. One of them, the leader,
// waits at the CQ and handles completions for all. The others, the followers, wait on channels of
// their own. A caller that has what it needs makes a follower the next leader. So a program with
// one goroutine per connection has no switches of goroutines, and with Manual progress the leader
// runs the protocol.

// waiting is the part of a Conn for callers that wait.
type waiting struct {
	virtual   bool
	polls     bool               // a lone caller polls before it waits
	polling   bool               // a leader waits at the CQ
	promoted  bool               // a follower was woken to lead, and has not run yet
	awake     int                // followers that were woken and have not run yet
	interrupt context.CancelFunc // wakes a leader that waits for a slot of a call
	turn      uint64             // counts what others may wait for, in virtual time
	followers list               // all waiters, by links[0]
	spare     []*waiter
	wcs       [64]roce.WC // of the leader

	messages waitq // for a message
	requests waitq // for a request
	credit   waitq // for a credit and a slot
	slot     waitq // for a slot of the send queue
	callSlot waitq // for a slot of a call
}

// waiter is a follower.
type waiter struct {
	ch       chan struct{} // capacity 1
	links    [2]link       // in followers and in its queue
	queue    *waitq
	woken    bool // and in no list
	promoted bool
}

type link struct{ prev, next *waiter }

// list is a list of waiters.
type list struct{ first, last *waiter }

// waitq is a list of waiters for the same condition.
type waitq struct {
	list
	woken int  // waiters that were woken and have not run yet
	soon  bool // the waiter expects the answer to the only thing that is outstanding
}

func (l *list) push(w *waiter, which int) {
	w.links[which] = link{prev: l.last}
	if l.last == nil {
		l.first = w
	} else {
		l.last.links[which].next = w
	}
	l.last = w
}

func (l *list) remove(w *waiter, which int) {
	k := w.links[which]
	if k.prev == nil {
		l.first = k.next
	} else {
		k.prev.links[which].next = k.next
	}
	if k.next == nil {
		l.last = k.prev
	} else {
		k.next.links[which].prev = k.prev
	}
	w.links[which] = link{}
}

// block waits until something has happened that may fulfill the condition of q, or ctx is done.
// The caller holds mu, which block releases meanwhile, and checks the condition again.
func (c *Conn) block(ctx context.Context, q *waitq) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if c.flushUnless(); c.err != nil {
		return c.err
	}
	if c.virtual {
		return c.blockVirtual(ctx)
	}
	if !c.polling {
		return c.lead(ctx, q)
	}
	return c.follow(ctx, q)
}

// lead waits for completions and handles them.
func (c *Conn) lead(ctx context.Context, q *waitq) error {
	c.polling = true
	wait := ctx
	if q == &c.callSlot {
		// The release of an answer by another goroutine frees a slot, without a completion.
		wait, c.interrupt = context.WithCancel(ctx)
		defer c.interrupt()
	}
	soon := q.soon && c.polls && c.followers.first == nil
	c.mu.Unlock()
	n, err := c.completions(wait, soon)
	ended := c.ended(n, err)
	c.mu.Lock()
	c.polling, c.interrupt = false, nil
	c.dispatch(c.wcs[:n])
	if ended != nil {
		c.fail(ended)
	}
	if c.followers.first != nil {
		c.wakeReady()
	}
	return ctx.Err()
}

// completions waits for completions. If one is expected soon, it polls first: waking a goroutine
// takes longer than a round trip. Otherwise it waits at once, so that more completions are handled
// together. With Manual progress, Wait polls itself. On a link in memory, polling delays the
// goroutines that make the answer.
func (c *Conn) completions(ctx context.Context, soon bool) (n int, err error) {
	for i := 0; i < polls && soon; i++ {
		if n := c.cq.Poll(c.wcs[:]); n > 0 {
			return n, nil
		}
	}
	return c.cq.Wait(ctx, c.wcs[:])
}

const polls = 32

// follow waits for another caller's signal.
func (c *Conn) follow(ctx context.Context, q *waitq) error {
	w := c.newWaiter()
	w.queue = q
	c.followers.push(w, 0)
	q.push(w, 1)
	c.mu.Unlock()
	select {
	case <-w.ch:
	case <-ctx.Done():
	}
	c.mu.Lock()
	var err error
	switch {
	case !w.woken:
		c.unlink(w)
		err = ctx.Err()
	default:
		c.awake--
		select { // ctx ended at the same time
		case <-w.ch:
		default:
		}
		if w.promoted {
			c.promoted = false
		} else {
			q.woken--
		}
	}
	w.woken, w.promoted, w.queue = false, false, nil
	c.spare = append(c.spare, w)
	return err
}

// blockVirtual is block in virtual time, where one process runs at a time: each one looks at the
// CQ.
func (c *Conn) blockVirtual(ctx context.Context) error {
	seen := c.turn
	c.mu.Unlock()
	err := c.dev.Await(ctx, func() bool { return c.cq.Len() > 0 || c.turn != seen })
	n := 0
	if err == nil || ctx.Err() == nil {
		n = c.cq.Poll(c.wcs[:])
	}
	ended := c.ended(n, nil)
	c.mu.Lock()
	c.dispatch(c.wcs[:n])
	if err != nil && ctx.Err() == nil {
		ended = err
	}
	if ended != nil {
		c.fail(ended)
	}
	return ctx.Err()
}

func (c *Conn) newWaiter() *waiter {
	if n := len(c.spare); n > 0 {
		w := c.spare[n-1]
		c.spare = c.spare[:n-1]
		return w
	}
	return &waiter{ch: make(chan struct{}, 1)}
}

func (c *Conn) unlink(w *waiter) {
	c.followers.remove(w, 0)
	w.queue.remove(w, 1)
}

// wake wakes the first waiter of q, if there is one.
func (c *Conn) wake(q *waitq) {
	if w := q.first; w != nil {
		c.unlink(w)
		w.woken = true
		q.woken++
		c.awake++
		w.ch <- struct{}{}
	}
}

// wakeFor wakes a waiter if n exceeds the number of waiters that were woken for the same.
func (c *Conn) wakeFor(q *waitq, n int) {
	if q.first != nil && n > q.woken {
		c.wake(q)
	}
}

// wakeAll wakes all waiters: the connection has ended.
func (c *Conn) wakeAll() {
	c.turn++
	for c.followers.first != nil {
		c.wake(c.followers.first.queue)
	}
	if c.interrupt != nil {
		c.interrupt()
	}
}

// unlock releases mu. It wakes those that can continue, and the next leader if there is none.
func (c *Conn) unlock() {
	if c.followers.first != nil {
		c.wakeReady()
		// The newest follower, because it probably leads for the longest time.
		if w := c.followers.last; w != nil && !c.polling && !c.promoted {
			c.unlink(w)
			w.woken, w.promoted, c.promoted = true, true, true
			c.awake++
			w.ch <- struct{}{}
		}
	}
	c.flushUnless()
	c.mu.Unlock()
}

// wakeReady wakes one waiter of each condition that holds. Each one wakes the next in unlock.
func (c *Conn) wakeReady() {
	free := c.free()
	c.wakeFor(&c.slot, free)
	c.wakeFor(&c.credit, min(free, c.credits))
	c.wakeFor(&c.messages, c.inbox.len())
	c.wakeFor(&c.requests, c.pending.len())
	c.wakeFor(&c.callSlot, len(c.freeCalls))
}

// ended returns why the connection ended if one of n completions of the leader failed, or err, the
// result of CQ.Wait, is not that of a context. It waits a little for the reason. The caller does
// not hold mu.
func (c *Conn) ended(n int, err error) error {
	var status roce.Status
	for i := range c.wcs[:n] {
		if s := c.wcs[i].Status; s != roce.Success {
			status, err = s, &roce.StatusError{Status: s}
			break
		}
	}
	isCtx := errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
	if err == nil || (isCtx && status == roce.Success) {
		return nil
	}
	// The QP goes to the error state before package roce knows the reason.
	ctx, cancel := context.WithTimeout(context.Background(), reasonWait)
	defer cancel()
	_ = c.dev.Await(ctx, func() bool { return c.conn.Err() != nil })
	// If the device fails, the connection learns of it after its completions.
	return cmp.Or(c.conn.Err(), c.dev.Err(), err)
}

// reasonWait limits the wait for the reason why a connection ended.
const reasonWait = time.Second
