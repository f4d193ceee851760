package loopback

import (
	"math"
	"runtime"
	"sync/atomic"
	"time"
)

// spinFor is the last stretch before a frame is due that Wait passes by
// yielding: timers of an idle process are coarser than a wire.
const spinFor = 200 * time.Microsecond

// sleeper puts one goroutine to sleep and lets any wake it. The sleeper
// raises asleep, then looks for work once more; a waker makes its work
// visible, then looks at asleep. sync/atomic puts these four in one order, so
// at least one of the two sees the other, and no wake-up is lost.
type sleeper struct {
	asleep atomic.Bool
	woken  atomic.Bool // Wake was called and no Wait has answered yet
	token  chan struct{}
	timer  *time.Timer
}

func (s *sleeper) init() {
	s.token = make(chan struct{}, 1)
	s.timer = time.NewTimer(time.Hour)
	s.timer.Stop()
}

// nudge ends a sleep that is going on.
func (s *sleeper) nudge() {
	if s.asleep.Load() && s.asleep.CompareAndSwap(true, false) {
		select {
		case s.token <- struct{}{}:
		default:
		}
	}
}

// rest sleeps until nudge, or for d if d >= 0. The caller has raised asleep.
func (s *sleeper) rest(d time.Duration) {
	if d < 0 {
		<-s.token
		return
	}
	s.timer.Reset(d)
	select {
	case <-s.token:
	case <-s.timer.C:
	}
	s.timer.Stop()
}

// Wake implements driver.Port.
func (p *Port) Wake() {
	// A swap, not a look first: the Wait that answers must see all that
	// happened before this call.
	p.sleep.woken.Swap(true)
	p.sleep.nudge()
}

// Close implements driver.Port. A Wait that is going on returns ErrClosed.
func (p *Port) Close() error {
	if !p.closed.Swap(true) {
		p.sleep.nudge()
		p.net.notify()
	}
	return nil
}

// Wait implements driver.Port. It returns ErrClosed once the Port is closed.
// On a virtual link it does not wait: time passes by Advance only.
func (p *Port) Wait(d time.Duration) error {
	p.stats.waits.Add(1)
	end := int64(0) // no limit
	if d >= 0 && d < math.MaxInt64/2 {
		end = p.link.clock() + int64(d)
	}
	for {
		done, due := p.awaited()
		switch {
		case p.closed.Load():
			return ErrClosed
		case done || p.link.virtual:
			return nil
		case due != 0 && (end == 0 || due < end):
			p.pause(due, spinFor)
		case p.pause(end, 0):
			return nil
		}
	}
}

// awaited reports whether Wait has its reason to return, and if not, when the
// next frame is due (0: none under way).
func (p *Port) awaited() (done bool, due int64) {
	if p.sleep.woken.Swap(false) {
		return true, 0
	}
	if !p.timed && p.pending() {
		return true, 0 // if it is not due, Receive finds out
	}
	due, ok := p.nextArrival()
	return ok && due <= p.link.clock(), due
}

// pause sleeps until an instant (0: no limit) or a nudge, but for the last
// stretch, which it passes by yielding; true if the instant has come.
func (p *Port) pause(until int64, stretch time.Duration) bool {
	s, left := &p.sleep, time.Duration(-1)
	if until != 0 {
		left = time.Duration(until - p.link.clock())
		switch {
		case left <= 0:
			return true
		case left <= stretch:
			runtime.Gosched()
			return false
		}
		left -= stretch
	}
	s.asleep.Store(true)
	if !s.woken.Load() && !p.closed.Load() && !p.pending() {
		s.rest(left)
	}
	s.asleep.Store(false)
	return false
}

// pending reports whether a frame came since the rings were last drained.
func (p *Port) pending() bool {
	for _, d := range p.in {
		if d != nil && d.frames.ready() {
			return true
		}
	}
	return false
}
