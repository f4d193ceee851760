package cli

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// A Log writes at most logBurst lines at once and one per logInterval in the long run.
const (
	logBurst    = 10
	logInterval = time.Second
)

// Log writes lines that any host of the network can cause, and limits their rate, so that an
// attacker cannot fill a disk with them. It is safe for concurrent use.
type Log struct {
	w io.Writer

	mu      sync.Mutex
	full    time.Time // when logBurst lines may be written at once again
	skipped int       // lines since the last one that was written
}

// NewLog returns a Log that writes to w.
func NewLog(w io.Writer) *Log { return &Log{w: w} }

// Printf writes a line, or counts it if there are too many. The next line that is written says how
// many were left out.
func (l *Log) Printf(format string, args ...any) { l.printf(time.Now(), format, args...) }

func (l *Log) printf(now time.Time, format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.full.Before(now) {
		l.full = now
	}
	if l.full.Sub(now) > (logBurst-1)*logInterval {
		l.skipped++
		return
	}
	l.full = l.full.Add(logInterval)
	l.flush()
	fmt.Fprintf(l.w, format+"\n", args...)
}

// Flush writes how many lines were left out since the last one.
func (l *Log) Flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flush()
}

func (l *Log) flush() {
	if l.skipped > 0 {
		fmt.Fprintf(l.w, "(%s left out)\n", Count(l.skipped, "similar message"))
		l.skipped = 0
	}
}
