package loop

import (
	"runtime"
	"time"

	"github.com/gorxe/gorxe/qp"
)

// sleep blocks the owner until a frame, a timer, a doorbell or a command needs it. quit is an
// additional reason not to sleep. It is called once after "sleeping" is set; a goroutine that makes
// it true must call Port.Wake afterwards.
//
// Timers within milliseconds are expensive on virtual machines, because the kernel has to program
// the processor's timer for each sleep. Most of them are canceled. So pending ACKs leave before the
// owner sleeps, and sleeps have a minimum length while no packets get lost.
func (l *Loop) sleep(quit func() bool) {
	if l.eng.ReleaseAcks() {
		if l.transmit(l.last); !l.eng.Idle() && !l.stalled {
			return // there was more than one batch to send
		}
	}
	l.coalesce.until = 0
	l.sleeping.Store(true)
	defer l.sleeping.Store(false)
	if l.eng.DoorbellPending() || l.cmdReady.Load() || l.stopping.Load() ||
		(quit != nil && quit()) {
		return
	}
	if l.guest != nil && l.guest.Sleeps(l.crowded) {
		return
	}
	if _, held := l.held(); held {
		l.sharpenTimers()
	}
	l.ctr.Sleeps++
	l.slept = true
	l.idle = false
	if err := l.port.Wait(l.sleepTime(l.last)); err != nil {
		l.ctr.PortErrors++
		l.fail(err)
		select { // commands and timers still run
		case <-l.nudge:
		case <-time.After(failedSleep):
		}
	}
}

// sleepTime returns how long the owner may sleep at time now. A negative value means that no timer
// runs.
func (l *Loop) sleepTime(now qp.Time) time.Duration {
	d := time.Duration(-1)
	if t, ok := l.eng.NextTimeout(); ok {
		d = max(0, time.Duration(t-now))
		if l.eng.Calm(now) || l.crowded && l.eng.CalmWhenBusy(now) {
			d = max(d, minSleep)
		}
	}
	t, ok := l.eng.KeptAckDue()
	d = sooner(d, now, t, ok)
	t, ok = l.host.NextTimeout()
	d = sooner(d, now, t, ok)
	t, ok = l.held()
	d = sooner(d, now, t, ok)
	if l.stalled && (d < 0 || d > stallSleep) {
		d = stallSleep
	}
	return d
}

// sooner returns d, or the time from now to t if that is shorter. A negative d is no limit. If ok
// is false, there is no t.
func sooner(d time.Duration, now, t qp.Time, ok bool) time.Duration {
	if left := max(0, time.Duration(t-now)); ok && (d < 0 || left < d) {
		return left
	}
	return d
}

// spinner decides when an idle owner stops spinning and blocks.
type spinner struct {
	loop  *Loop
	spin  time.Duration // may be AutoSpin
	cores int32
	since qp.Time // first of the current steps without work; 0: none
}

// Spins reports whether an idle owner may spin before it blocks.
func (l *Loop) Spins() bool { return l.spin != 0 }

func (l *Loop) newSpinner() spinner {
	return spinner{loop: l, spin: l.spin, cores: int32(runtime.GOMAXPROCS(0))}
}

func (s *spinner) limit() time.Duration {
	switch {
	case s.loop.crowded:
		return 0
	case s.spin != AutoSpin:
		return s.spin
	case autoLoops.Load() >= s.cores:
		return 0
	}
	return DefaultSpin
}

// expired takes the amount of work that the step at time now did, and reports whether it is time to
// block.
func (s *spinner) expired(work int, now qp.Time) bool {
	if work > 0 {
		s.since = 0
		return false
	}
	spun := now - s.since
	if s.loop.eng.RecentGaps(now) {
		spun /= longSpin
	}
	limit := s.limit()
	if _, held := s.loop.held(); held && limit > 0 {
		limit = max(limit, heldSpin)
	}
	switch {
	case limit <= 0:
		return true
	case s.since == 0:
		s.since = now
		return false
	case spun < qp.Time(limit):
		return false
	}
	s.since = 0
	return true
}
