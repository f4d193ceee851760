package testbed

import (
	"errors"
	"fmt"
	"time"
)

// ErrStuck means that nothing will happen anymore in virtual time: no packet is in flight and no
// timer runs.
var ErrStuck = errors.New("virtual time is stuck: no packet is in flight and no timer runs")

// ErrTimeout means that the condition of Run did not hold within the limit.
var ErrTimeout = errors.New("the condition did not hold in time")

// Party is anything beside the devices that has work in virtual time, such as a transport.
type Party interface {
	// Progress does the work that is due and returns how much it did.
	Progress() int
	// NextTimeout returns the next instant, in nanoseconds of the link's clock, at which Progress
	// must be called.
	NextTimeout() (int64, bool)
}

// Progress drives both devices, and then the parties, until none has work at this instant.
func (t *Testbed) Progress(parties ...Party) {
	for busy := true; busy; {
		busy = false
		for _, d := range t.Dev {
			busy = d.Progress() > 0 || busy
		}
		for _, p := range parties {
			busy = p.Progress() > 0 || busy
		}
	}
}

// Step processes everything that is due at this instant and moves the clock to the next packet
// arrival or timer. It returns ErrStuck if there is neither. Virtual time only.
func (t *Testbed) Step(parties ...Party) error {
	t.Progress(parties...)
	next, ok := t.Link.NextEvent()
	timeout := func(at int64, have bool) {
		if have && (!ok || at < next) {
			next, ok = at, true
		}
	}
	for _, d := range t.Dev {
		timeout(d.NextTimeout())
	}
	for _, p := range parties {
		timeout(p.NextTimeout())
	}
	if !ok {
		return ErrStuck
	}
	t.Link.Advance(time.Duration(max(1, next-t.Link.Now())))
	return nil
}

// Run steps until done returns true. It returns ErrTimeout after limit of virtual time.
func (t *Testbed) Run(limit time.Duration, done func() bool, parties ...Party) error {
	for end := t.Link.Now() + int64(limit); !done(); {
		if t.Link.Now() > end {
			return fmt.Errorf("%w (%v of virtual time)", ErrTimeout, limit)
		}
		if err := t.Step(parties...); err != nil {
			return err
		}
	}
	return nil
}
