package testbed

import (
	"runtime"
	"strings"
	"sync/atomic"

	"github.com/gorxe/gorxe/driver"
)

// Watched is a port that counts how it is used, and by which goroutines. The counters may be read
// at any time.
type Watched struct {
	driver.Port
	Function string        // a part of a function's name, such as "ping.(*echoer).run"
	Polls    atomic.Uint64 // calls of Receive
	Inside   atomic.Uint64 // calls of Receive that returned frames, with Function on the stack
	Outside  atomic.Uint64 // the same, without Function on the stack
}

// Unwrap implements driver.Wrapper.
func (w *Watched) Unwrap() driver.Port { return w.Port }

// Receive counts the call.
func (w *Watched) Receive(bufs []driver.Buf) int {
	w.Polls.Add(1)
	n := w.Port.Receive(bufs)
	switch {
	case n == 0:
	case w.called():
		w.Inside.Add(1)
	default:
		w.Outside.Add(1)
	}
	return n
}

// called reports whether Function is on the stack.
func (w *Watched) called() bool {
	var pcs [32]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(1, pcs[:])])
	for {
		f, more := frames.Next()
		if strings.Contains(f.Function, w.Function) {
			return true
		}
		if !more {
			return false
		}
	}
}
