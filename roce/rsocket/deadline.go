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
	moves uint64
	done  chan struct{} // closed when the time is over
	shut  bool
	after map[*func()]struct{} // to call when the time is over
}

func newDeadline() *deadline { return &deadline{done: make(chan struct{})} }

// set moves the deadline to t, or removes it if t is zero.
func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	if !d.shut {
		d.move(t)
	}
	d.unlock()
}

// move is set for the holder of mu.
func (d *deadline) move(t time.Time) {
	d.moves++
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
	if wait := time.Until(t); wait > 0 {
		moves := d.moves
		d.timer = time.AfterFunc(wait, func() { d.expire(moves) })
		return
	}
	close(d.done)
}

// expire ends the waits, unless the deadline was moved after its timer was started.
func (d *deadline) expire(moves uint64) {
	d.mu.Lock()
	if d.moves == moves && !over(d.done) {
		close(d.done)
	}
	d.unlock()
}

// unlock releases mu, and calls the functions of AfterFunc if the time is over.
func (d *deadline) unlock() {
	var due map[*func()]struct{}
	if over(d.done) {
		due, d.after = d.after, nil
	}
	d.mu.Unlock()
	for f := range due {
		(*f)()
	}
}

// AfterFunc is what context.AfterFunc uses instead of a goroutine.
func (d *deadline) AfterFunc(f func()) (stop func() bool) {
	d.mu.Lock()
	if d.after == nil {
		d.after = map[*func()]struct{}{}
	}
	d.after[&f] = struct{}{}
	d.unlock()
	return func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		_, waits := d.after[&f]
		delete(d.after, &f)
		return waits
	}
}

// close ends all waits, now and later.
func (d *deadline) close() {
	d.mu.Lock()
	d.move(time.Unix(1, 0))
	d.shut = true
	d.unlock()
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
