package bench

import (
	"context"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/papers/kit"
)

const (
	// idleSpin is how long a side with nothing to do spins in a stream before it blocks.
	idleSpin = 20 * time.Microsecond
	// napTime bounds how long a blocked side goes without a look at the outside world.
	napTime = 20 * time.Millisecond
	// lookEvery is how many empty turns a spinning side makes between two such looks.
	lookEvery = 1024
)

// job is one measurement as one side sees it. run is called on the measuring thread; stop may be called meanwhile.
type job interface {
	hello() hello
	// run joins the peer and measures or serves until the time is up, or until halt is done.
	run(peer *hello, ready func(), halt *halt) (outcome, error)
	close() error
}

// halt tells a running job to end.
type halt struct {
	flag   atomic.Bool
	ctx    context.Context
	cancel context.CancelFunc
}

func newHalt() *halt {
	h := new(halt)
	h.ctx, h.cancel = context.WithCancel(context.Background())
	return h
}

func (h *halt) set() {
	h.flag.Store(true)
	h.cancel()
}

// now is whether it is time to end.
func (h *halt) now() bool { return h.flag.Load() }

// onThread runs f on a thread of its own, pinned to a CPU unless that is negative. The thread ends with it.
func onThread(cpu int, f func() (outcome, error)) (o outcome, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: a pinned thread is not given back
		if err = kit.Pin(cpu); err == nil {
			o, err = f()
		}
	}()
	<-done
	return o, err
}

// cpuTime is what this process has used, in user space and kernel.
func cpuTime() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// threadTime is the same of the calling thread.
func threadTime() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_THREAD, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// window counts messages of a stream from the end of the warm-up on. The batch that comes first after it starts
// the clock and does not count, so that messages and time fit together.
type window struct {
	warmup             time.Duration
	first, begin, last time.Time
	messages, all      uint64
}

func (w *window) add(now time.Time, n uint64) {
	w.all += n
	if w.first.IsZero() {
		w.first = now
	}
	switch {
	case now.Sub(w.first) < w.warmup:
	case w.begin.IsZero():
		w.begin, w.last = now, now
	default:
		w.messages += n
		w.last = now
	}
}

func (w *window) outcome() outcome {
	return outcome{Messages: w.messages, All: w.all, Elapsed: w.last.Sub(w.begin)}
}

// trips records round trips after the warm-up. A trip begins when the one before it ended.
type trips struct {
	lat            *cli.Latency
	start, counted time.Time
	end, last      time.Time
	all            uint64
}

func newTrips(s *spec) *trips {
	now := time.Now()
	return &trips{lat: cli.NewLatency(), start: now, counted: now.Add(s.Warmup), end: now.Add(s.Warmup + s.Duration), last: now}
}

// done records a trip that has just ended, and tells whether the time is up.
func (t *trips) done() bool {
	now := time.Now()
	if t.last.After(t.counted) {
		t.lat.Record(now.Sub(t.last))
	}
	t.last = now
	t.all++
	return now.After(t.end)
}

func (t *trips) outcome() outcome {
	return outcome{
		Messages: uint64(t.lat.Count()), All: t.all, Elapsed: t.last.Sub(t.counted),
		P50: t.lat.Percentile(50), P99: t.lat.Percentile(99),
	}
}
