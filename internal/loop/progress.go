package loop

import (
	"context"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/gorxe/gorxe/internal/osthread"
)

// autoLoops is the number of progress goroutines in the process. Each of them may keep a core busy.
var autoLoops atomic.Int32

// Start starts the progress goroutine of a loop with automatic progress, and returns when it owns
// the loop. It pins the goroutine's OS thread to CPU number cpu unless cpu is negative. The error
// is that of osthread.Pin.
func (l *Loop) Start(cpu int) error {
	started := make(chan error, 1)
	l.ended = make(chan struct{})
	go func() {
		defer close(l.ended)
		l.run(cpu, started)
	}()
	err := <-started
	if err != nil {
		<-l.ended
	}
	return err
}

// run owns the loop until Stop is called.
func (l *Loop) run(cpu int, started chan<- error) {
	// A goroutine that is locked to its thread needs two switches of threads for each wait for
	// another goroutine. In a port that sleeps in the kernel it does not wait for goroutines.
	locked := l.kernel || cpu >= 0
	if locked {
		runtime.LockOSThread()
	}
	if cpu >= 0 {
		// The goroutine ends without UnlockOSThread, so that the runtime discards the pinned
		// thread.
		if err := osthread.Pin(cpu); err != nil {
			started <- err
			return
		}
	} else {
		defer runtime.UnlockOSThread()
		defer l.bluntTimers()
	}
	for !l.mu.TryLock() { // a command may be running
		time.Sleep(lockPause)
	}
	defer func() {
		l.attended = false
		l.unlock()
	}()
	l.attended = true
	started <- nil
	autoLoops.Add(1)
	defer autoLoops.Add(-1)
	s := l.newSpinner()
	l.pinned, l.loose = cpu >= 0, !locked
	for !l.stopping.Load() {
		l.steps(&s)
		if l.drivers.Load() > 0 {
			l.rest()
		}
	}
}

// steps runs steps until Stop or Drive is called or memory faults.
func (l *Loop) steps(s *spinner) {
	defer l.catch(debug.SetPanicOnFault(true))
	for !l.stopping.Load() && l.drivers.Load() == 0 {
		if l.guest != nil && l.last-l.yielded >= guestYield {
			l.yield()
		}
		before := l.ctr.TxBytes
		work := l.step()
		l.giveWay(l.ctr.TxBytes - before)
		if l.crowded && l.received && l.linger() {
			continue
		}
		if s.expired(work, l.last) {
			l.sleep(l.driven)
		}
	}
}

// giveWay yields the processor after a step that sent little, so that a receiver on this host can
// run. Otherwise the owner would send a few packets in each of the next steps. If programs wait for
// the owner, it does not yield, because they would poll for a whole time slice.
func (l *Loop) giveWay(sent uint64) {
	if l.crowded && sent > 0 && sent < manyBytes && l.guest != nil && l.guest.Busy() {
		osthread.Yield()
	}
}

// yield lets Go's scheduler run in a process whose loop mostly waits for other processes. Without
// it, the runtime finds after 10 ms that the goroutine does not yield, preempts it with a signal,
// and looks at it every 20 us for a while. Where programs poll, each look takes the CPU from one of
// them. For a goroutine that is locked to its thread, to yield means to wait for another thread.
func (l *Loop) yield() {
	l.yielded = l.last
	if l.sharp || l.pinned {
		return
	}
	if !l.loose {
		l.loose = true
		runtime.UnlockOSThread()
	}
	runtime.Gosched()
}

// sharpenTimers makes the kernel end the sleeps of the progress goroutine's thread on time. By
// default it adds up to 50 us, in which the link would be idle if packets wait for the backlog.
func (l *Loop) sharpenTimers() {
	if !l.attended || l.sharp || !l.kernel { // the thread is not ours
		return
	}
	if l.loose {
		l.loose = false
		runtime.LockOSThread()
	}
	l.sharp = true
	osthread.SharpTimers(true)
}

// bluntTimers undoes that.
func (l *Loop) bluntTimers() {
	if l.sharp {
		osthread.SharpTimers(false)
	}
}

// TryStep runs one step if the lock is free, and returns how much work it did. It is for callers
// that drive the loop.
func (l *Loop) TryStep() int {
	if !l.mu.TryLock() {
		return 0
	}
	n := l.guardedStep()
	l.unlock()
	return n
}

// Yield is called after a poll that found nothing. It keeps a caller that spins from taking the
// processor from the progress goroutine, which would stop both until the scheduler preempts the
// caller. While only callers drive the loop, it does nothing. In a bubble of
// testing/synctest it sleeps with both, so that time passes.
func (l *Loop) Yield() {
	switch {
	case l.simulated:
		time.Sleep(simulatedPause)
	case !l.manual && !l.resting.Load() && l.empty.Add(1)%yieldEvery == 0:
		// The progress goroutine may wait for a processor of the Go scheduler, or its thread for
		// one of the kernel.
		runtime.Gosched()
		osthread.Yield()
	}
}

// Simulated reports whether the loop runs in a bubble of testing/synctest.
func (l *Loop) Simulated() bool { return l.simulated }

// Await drives the loop until ready returns true or ctx is done. It is for callers that drive the
// loop. The first caller becomes the owner and blocks in the port. Others wait for a value on wake,
// or until the lock is free. ready is called with and without the lock; it must become true when
// the device closes.
func (l *Loop) Await(ctx context.Context, wake <-chan struct{}, ready func() bool) {
	var stop func() bool // set once the end of ctx wakes the port
	defer func() {
		if stop != nil {
			stop()
		}
		l.notifyWaiter() // the wake-up of this caller may have been meant for another
	}()
	over := false // ready need not return true twice
	quit := func() bool {
		over = over || ctx.Err() != nil || ready()
		return over
	}
	s := l.newSpinner()
	for !quit() {
		if !l.mu.TryLock() {
			if l.waitForLock(ctx, wake) {
				return
			}
			continue
		}
		l.drive(&s, quit, func() {
			if stop == nil && ctx.Done() != nil {
				stop = context.AfterFunc(ctx, l.wakePort)
			}
		})
		l.unlock()
	}
}

// drive runs steps until quit returns true or the loop stops. It calls asleep before it sleeps.
func (l *Loop) drive(s *spinner, quit func() bool, asleep func()) {
	defer l.catch(debug.SetPanicOnFault(true))
	for !l.closed && !l.stopping.Load() {
		work := l.step()
		if quit() {
			return
		}
		if s.expired(work, l.last) {
			asleep()
			l.sleep(quit)
		}
	}
}

// waitForLock waits while another goroutine owns the loop, and reports whether wake ended the wait.
// It tries the lock once after it has counted itself as a waiter. The owner reads that count after
// it has unlocked, so one of the two sees the other.
func (l *Loop) waitForLock(ctx context.Context, wake <-chan struct{}) bool {
	l.waiters.Add(1)
	defer l.waiters.Add(-1)
	if l.mu.TryLock() {
		l.unlock()
		return false
	}
	select {
	case <-wake:
		return true
	case <-l.free:
	case <-ctx.Done():
	}
	return false
}

// Stop ends the progress goroutine and callers of Await, closes the port and runs the last
// commands. Later commands are refused. It returns the error of Port.Close.
func (l *Loop) Stop() error {
	l.stopping.Store(true)
	l.wakePort()
	l.wakeResting()
	if l.ended != nil {
		<-l.ended
	}
	l.takeLock()
	err := l.close()
	l.cmdMu.Lock()
	l.dead = true
	l.cmdMu.Unlock()
	l.runCommands()
	l.unlock()
	return err
}

// takeLock takes the lock from an owner that may sleep in Await.
func (l *Loop) takeLock() {
	for !l.mu.TryLock() {
		l.Wake()
		time.Sleep(lockPause)
	}
}
