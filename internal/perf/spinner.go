package perf

import (
	"runtime"
	"time"

	"github.com/gorxe/gorxe/roce"
)

const (
	checkEvery = 256                    // polls between two checks of contexts and times
	linger     = 1 << 17                // empty polls before the first pause, at least 10 ms
	pauseEvery = 2048                   // empty polls between two pauses, a multiple of checkEvery
	minPause   = 20 * time.Microsecond  // first pause
	longPause  = 500 * time.Microsecond // from here on, the loop pauses after checkEvery polls
	maxPause   = 5 * time.Millisecond
)

// Spinner controls a loop that polls without blocking. From Start to Stop the polling goroutine
// runs the device itself, so that no handover between threads delays a message. With automatic
// progress, the Spinner pauses the loop after many empty polls, and leaves the device to its own
// goroutine meanwhile. The pauses grow with the time in which nothing was found, up to a ninth of
// it and at most 5 ms, so that an idle session uses little CPU time. Before the first pause, the
// thread remains runnable for some milliseconds: if the peer is on the same core, the kernel moves
// one of them to another core only if both want to run.
type Spinner struct {
	dev     *roce.Device
	manual  bool   // progress of dev
	release func() // of Device.Drive; nil before Start
	idle    int    // empty polls in a row
	pause   time.Duration
}

// NewSpinner returns a Spinner for a loop that polls dev.
func NewSpinner(dev *roce.Device) Spinner {
	return Spinner{dev: dev, manual: dev.Info().Progress == roce.Manual}
}

// Start must be called before the loop, by the goroutine that polls. Stop must follow.
func (s *Spinner) Start() {
	runtime.LockOSThread()
	s.release = s.dev.Drive()
}

// Stop ends the effect of Start.
func (s *Spinner) Stop() {
	s.release()
	runtime.UnlockOSThread()
}

// Found must be called after a poll that found something.
func (s *Spinner) Found() { s.idle, s.pause = 0, 0 }

// Empty must be called after an empty poll. It reports whether the loop should check for events
// that polling does not show.
func (s *Spinner) Empty() (check bool) {
	if s.idle++; s.idle%checkEvery != 0 {
		return false
	}
	limit := pauseEvery
	if !s.manual && s.pause == 0 {
		limit = linger
	}
	if s.idle >= limit || s.pause >= longPause {
		s.idle = 0
		s.sleep()
	}
	return true
}

func (s *Spinner) sleep() {
	if s.manual {
		runtime.Gosched()
		return
	}
	s.pause = max(minPause, min(s.pause+s.pause/8, maxPause))
	s.release()
	time.Sleep(s.pause)
	s.release = s.dev.Drive()
}
