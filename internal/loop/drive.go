package loop

import "context"

// Drive makes callers of TryStep and Await run the steps of a loop with automatic progress, until
// as many calls of Release follow. The progress goroutine rests meanwhile. So a goroutine that
// answers each message needs no handover between threads. From Drive to Release, the caller must
// call TryStep or Await again and again. With manual progress Drive does nothing.
func (l *Loop) Drive() {
	if l.ended == nil {
		return
	}
	if l.drivers.Add(1) == 1 {
		l.Wake() // the progress goroutine may sleep in the port
	}
}

// Release ends the effect of one call of Drive.
func (l *Loop) Release() {
	if l.ended != nil && l.drivers.Add(-1) == 0 {
		l.wakeResting()
	}
}

// Driven reports whether callers of TryStep and Await drive the loop.
func (l *Loop) Driven() bool { return l.manual || l.driven() }

func (l *Loop) driven() bool { return l.drivers.Load() > 0 }

// rest releases the loop while callers of Drive run it. The progress goroutine calls it.
func (l *Loop) rest() {
	l.attended = false
	l.resting.Store(true)
	l.unlock()
	for l.driven() && !l.stopping.Load() {
		<-l.resume
	}
	for !l.mu.TryLock() { // a caller of Await may need the loop a little longer
		l.waitForLock(context.Background(), l.resume)
	}
	l.resting.Store(false)
	l.attended = true
}

// wakeResting ends the wait in rest, or the next one.
func (l *Loop) wakeResting() {
	select {
	case l.resume <- struct{}{}:
	default:
	}
}
