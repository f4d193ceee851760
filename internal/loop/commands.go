package loop

import (
	"runtime/debug"

	"github.com/gorxe/gorxe/qp"
)

// command is a function that the owner runs for another goroutine.
type command struct {
	f    func(now qp.Time)
	done chan struct{}
}

// Do runs f as the owner and returns after it has run. It returns false, without running f, if the
// loop has stopped. f must not call Do. Any goroutine may call Do.
//
// The caller publishes the command and tries the lock. If that fails, the owner is either awake and
// checks for commands before or after it unlocks, or it sleeps and gets a Wake.
func (l *Loop) Do(f func(now qp.Time)) bool {
	c := &command{f: f, done: make(chan struct{})}
	l.cmdMu.Lock()
	if l.dead {
		l.cmdMu.Unlock()
		return false
	}
	l.cmds = append(l.cmds, c)
	l.cmdReady.Store(true)
	l.cmdMu.Unlock()
	if l.mu.TryLock() {
		l.runCommands()
		l.unlock()
	} else {
		l.Wake()
	}
	<-c.done
	return true
}

// Wake wakes the owner if it sleeps. Any goroutine may call it.
func (l *Loop) Wake() {
	if l.sleeping.Load() {
		l.wakePort()
	}
}

// wakePort ends the current or the next sleep of the owner.
func (l *Loop) wakePort() {
	l.port.Wake()
	if l.failed.Load() { // Port.Wait does not block any more
		select {
		case l.nudge <- struct{}{}:
		default:
		}
	}
}

// runCommands runs all published commands. Owner only.
func (l *Loop) runCommands() {
	if !l.cmdReady.Load() {
		return
	}
	l.cmdMu.Lock()
	cmds := l.cmds
	l.cmds = nil
	l.cmdReady.Store(false)
	l.cmdMu.Unlock()
	l.idle = false
	for _, c := range cmds {
		l.runCommand(c)
	}
}

func (l *Loop) runCommand(c *command) {
	defer close(c.done)
	defer l.catch(debug.SetPanicOnFault(true))
	c.f(l.now())
}

// unlock releases ownership. It runs commands that were published meanwhile and wakes a goroutine
// that waits in waitForLock. Every owner must release the lock this way.
func (l *Loop) unlock() {
	l.mu.Unlock()
	for l.cmdReady.Load() && l.mu.TryLock() {
		l.runCommands()
		l.mu.Unlock()
	}
	l.notifyWaiter()
}

// notifyWaiter tells one of the goroutines in waitForLock that the lock may be free.
func (l *Loop) notifyWaiter() {
	if l.waiters.Load() > 0 {
		select {
		case l.free <- struct{}{}:
		default:
		}
	}
}

// Posted tells the engine of work requests that were posted on q's send queue. Any goroutine may
// call it.
//
// If callers drive the loop, the poster is usually one of them, or no goroutine drives it, so that
// the lock is free and no doorbell is needed. The first post right after a step that received
// frames is probably a reply: it is sent at once, which saves the poster a step. Later posts wait
// for the next step and share one system call.
func (l *Loop) Posted(q *qp.QP) {
	if !l.Driven() || !l.mu.TryLock() {
		q.RingDoorbell()
		return
	}
	if !l.closed {
		l.eng.Posted(q)
		l.coalesce.posted()
		if l.received {
			l.received = false
			l.reply()
		}
	}
	l.unlock()
}

// reply transmits what was posted.
func (l *Loop) reply() {
	defer l.catch(debug.SetPanicOnFault(true))
	l.last = l.now()
	l.transmit(l.last)
}
