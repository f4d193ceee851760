package rsocket

import (
	"os"
	"sync"
	"time"
)

// deadline is a point in time that can be moved. It is a context.Context, so that roce.CQ.Wait can
// wait until then, and using one costs no allocation.
type deadline struct {
	mu    sync.Mutex
	timer *time.Timer
	done  chan struct{} // closed when the time is over
	shut  bool
}

func newDeadline() *deadline { return &deadline{done: make(chan struct{})} }

// set moves the deadline to t, or removes it if t is zero.
func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.shut {
		return
	}
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	if over(d.done) {
		d.done = make(chan struct{})
	}
	if t.IsZero() {
		return
	}
	done := d.done
	if wait := time.Until(t); wait > 0 {
		var timer *time.Timer
		timer = time.AfterFunc(wait, func() { d.expire(timer, done) })
		d.timer = timer
		return
	}
	close(done)
}

// expire ends the waits of a timer that is still the current one.
func (d *deadline) expire(timer *time.Timer, done chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer == timer && !over(done) {
		close(done)
	}
}

// close ends all waits, now and later.
func (d *deadline) close() {
	d.set(time.Unix(1, 0))
	d.mu.Lock()
	d.shut = true
	d.mu.Unlock()
}

// Done, Err, Deadline and Value implement context.Context.
func (d *deadline) Done() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.done
}

func (d *deadline) Err() error {
	if over(d.Done()) {
		return os.ErrDeadlineExceeded
	}
	return nil
}

func (d *deadline) Deadline() (time.Time, bool) { return time.Time{}, false }

func (d *deadline) Value(any) any { return nil }

func over(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}
