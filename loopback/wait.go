package loopback

import (
	"math"
	"runtime"
	"sync/atomic"
	"time"
)

// spinFor is the time before a frame is due during which Wait yields instead of sleeping, because
// timers of an idle process are too coarse.
const spinFor = 200 * time.Microsecond

// sleeper lets one goroutine sleep and others wake it. The goroutine sets asleep and then checks
// for work again; a waker publishes its work and then reads asleep. The atomic operations are
// sequentially consistent, so at least one side sees the other's write, and no wake-up is lost.
type sleeper struct {
	asleep atomic.Bool
	woken  atomic.Bool // Wake was called since the last return of Wait
	token  chan struct{}
	timer  *time.Timer
}

func (s *sleeper) init() {
	s.token = make(chan struct{}, 1)
	s.timer = time.NewTimer(time.Hour)
	s.timer.Stop()
}

// wake ends the current sleep.
func (s *sleeper) wake() {
	if s.asleep.Load() && s.asleep.CompareAndSwap(true, false) {
		select {
		case s.token <- struct{}{}:
		default:
		}
	}
}

// sleep blocks until wake is called, or for d if d >= 0. The caller has set asleep.
func (s *sleeper) sleep(d time.Duration) {
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
	// Always swap, even if woken is set: the Wait that answers must see everything that happened
	// before this call.
	p.sleep.woken.Swap(true)
	p.sleep.wake()
}

// Close implements driver.Port. A Wait in progress returns ErrClosed. A Port cannot be opened
// again. To simulate a host that starts again, give the address to another Port of the Link:
// link.Port(0).SetAddrs(), then link.Port(2).SetAddrs with the address.
func (p *Port) Close() error {
	if !p.closed.Swap(true) {
		p.sleep.wake()
		p.net.notify()
	}
	return nil
}

// Wait implements driver.Port. It returns ErrClosed if the Port is closed. On a virtual link it
// returns at once, because time advances only by Advance.
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
			p.pause(due, p.link.yields)
		case p.pause(end, 0):
			return nil
		}
	}
}

// awaited reports whether Wait should return. If not, due is the time of the next arrival, or 0 if
// no frame is in flight.
func (p *Port) awaited() (done bool, due int64) {
	if p.sleep.woken.Swap(false) {
		return true, 0
	}
	if !p.timed && p.pending() {
		return true, 0 // Receive checks whether it is due
	}
	due, ok := p.nextArrival()
	return ok && due <= p.link.clock(), due
}

// pause sleeps until a time (0: no limit) or a wake-up. It yields instead during the last stretch
// before the time. It returns true if the time has come.
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
		s.sleep(left)
	}
	s.asleep.Store(false)
	return false
}

// pending reports whether a frame has arrived since the rings were last drained.
func (p *Port) pending() bool {
	for _, d := range p.in {
		if d != nil && d.frames.ready() {
			return true
		}
	}
	return false
}
