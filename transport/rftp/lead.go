package rftp

import (
	"context"
	"runtime"
	"time"

	"github.com/gorxe/gorxe/internal/osthread"
)

const (
	leadSpin  = time.Millisecond     // for which a caller polls in vain before it sleeps
	leadAway  = 2 * time.Millisecond // without a call, after which the caller is relieved
	leadCheck = 64                   // polls between two looks at clock and context
)

// runUntil is sleep with Config.Drive: the caller leads, which means that it handles completions
// and runs the device, so that no block passes from thread to thread. Others wait. When nothing
// happens, or when nobody calls for some time, a goroutine relieves the caller.
func (c *Conn) runUntil(ctx context.Context, e event) error {
	if !c.takeTurn() {
		return c.await(ctx, e)
	}
	idle, err := c.leadUntil(ctx, e)
	switch {
	case c.over():
		c.stopLeading()
	case idle:
		c.relieve()
		return c.await(ctx, e)
	}
	c.turn.Unlock()
	return err
}

// shift is a goroutine that has turn while no caller leads.
type shift struct {
	end  context.CancelFunc
	done chan struct{} // closed when it has given up turn
}

// takeTurn takes turn, and ends the shift of a goroutine that has it. It returns false if another
// caller leads.
func (c *Conn) takeTurn() bool {
	if s := c.shift.Swap(nil); s != nil {
		s.end()
		<-s.done
	}
	return c.turn.TryLock()
}

// leadUntil leads until e may have happened, or until nothing has happened for some time.
func (c *Conn) leadUntil(ctx context.Context, e event) (idle bool, err error) {
	c.lead()
	begin := time.Now()
	for i := 1; ; i++ {
		if n := c.cq.Poll(c.wcs[:]); n > 0 {
			if _, due := c.progress(n); due {
				c.measureBacklog()
			}
			return false, nil
		}
		select {
		case <-c.wakes[e].c:
			return false, nil
		case <-c.down:
			return false, nil
		default:
		}
		if i%leadCheck != 0 {
			continue
		}
		if err := ctx.Err(); err != nil {
			return false, err
		}
		if time.Since(begin) >= leadSpin {
			return true, nil
		}
		runtime.Gosched()
		// What the caller waits for may need this processor, for example the peer on this host.
		osthread.Yield()
	}
}

// lead makes the caller, who has turn, run the device.
func (c *Conn) lead() {
	c.led++
	if c.release != nil || c.over() {
		return
	}
	c.release = c.dev.Drive()
	c.guard.Reset(leadAway)
}

// watch relieves a caller that does not come back.
func (c *Conn) watch() {
	if !c.turn.TryLock() {
		if c.shift.Load() == nil {
			c.guard.Reset(leadAway)
		}
		return
	}
	switch {
	case c.release == nil: // relieved
		c.turn.Unlock()
	case c.led != c.seen:
		c.seen = c.led
		c.guard.Reset(leadAway)
		c.turn.Unlock()
	default:
		c.relieve()
	}
}

// relieve leaves the device to its own goroutine, and the completions to another one until a caller
// leads again. It takes over turn from the caller.
func (c *Conn) relieve() {
	c.stopLeading()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.ended {
		c.turn.Unlock()
		return
	}
	ctx, end := context.WithCancel(c.life)
	s := &shift{end, make(chan struct{})}
	c.shift.Store(s)
	c.poller.Go(func() {
		c.pollAlways(ctx)
		end()
		c.turn.Unlock()
		close(s.done)
	})
}

// stopLeading leaves the device to its own goroutine. The caller has turn.
func (c *Conn) stopLeading() {
	if c.release != nil {
		c.release()
		c.release = nil
	}
}

// retire ends leading when the Conn is closed. Callers that lead return, because it has ended.
func (c *Conn) retire() {
	if !c.takeTurn() {
		c.turn.Lock()
	}
	c.stopLeading()
	c.guard.Stop()
	c.turn.Unlock()
}

// over reports whether the connection has ended.
func (c *Conn) over() bool {
	select {
	case <-c.down:
		return true
	default:
		return false
	}
}
