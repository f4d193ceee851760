package perf

import (
	"runtime"
	"time"
)

const (
	checkEvery = 256                    // polls between two checks of contexts and times
	pauseEvery = 2048                   // empty polls between two pauses, a multiple of checkEvery
	minPause   = 20 * time.Microsecond  // first pause
	longPause  = 500 * time.Microsecond // from here on, the loop pauses after checkEvery polls
	maxPause   = 5 * time.Millisecond
)

// Spinner controls a loop that polls without blocking. It pauses the loop after many empty polls,
// so that other goroutines and the device's own thread get the core. The pauses grow with the time
// in which nothing was found, up to a ninth of it and at most 5 ms, so that an idle session uses
// little CPU time.
type Spinner struct {
	Manual bool // the loop drives the device; a pause only yields to other goroutines

	idle  int // empty polls in a row
	pause time.Duration
}

// Found must be called after a poll that found something.
func (s *Spinner) Found() { s.idle, s.pause = 0, 0 }

// Empty must be called after an empty poll. It reports whether the loop should check for events
// that polling does not show.
func (s *Spinner) Empty() (check bool) {
	if s.idle++; s.idle%checkEvery != 0 {
		return false
	}
	if s.idle >= pauseEvery || s.pause >= longPause {
		s.idle = 0
		s.sleep()
	}
	return true
}

func (s *Spinner) sleep() {
	if s.Manual {
		runtime.Gosched()
		return
	}
	s.pause = max(minPause, min(s.pause+s.pause/8, maxPause))
	time.Sleep(s.pause)
}
