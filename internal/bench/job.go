package bench

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/gorxe/gorxe/papers/kit"
)

const (
	// idleSpin is how long a side with nothing to do polls in a stream before it blocks.
	idleSpin = 20 * time.Microsecond
	// napTime limits how long a blocked side waits before it checks halt.
	napTime = 20 * time.Millisecond
	// haltEvery is the number of empty polls of a spinning side between two checks of halt.
	haltEvery = 1024
	// replyTimeout limits a round trip.
	replyTimeout = time.Second
)

var errLost = errors.New("no reply within a second: end other programs, or check that the peer still runs")

// job is one measurement as one side sees it. run is called on the measuring thread.
type job interface {
	// hello returns what the peer needs to know.
	hello() hello
	// run connects to the peer, calls ready, and measures or serves until the time is up or halt
	// is set.
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

func (h *halt) isSet() bool { return h.flag.Load() }

// onThread runs f on a separate thread, pinned to a CPU unless that is negative.
func onThread(cpu int, f func() (outcome, error)) (o outcome, err error) {
	err = kit.OnCPU(cpu, func() (err error) {
		o, err = f()
		return err
	})
	return o, err
}

// drive runs a stream for the duration of the measurement: it calls send until the time is up.
func drive(s *spec, h *halt, send func() error) error {
	for end := time.Now().Add(s.Warmup + s.Duration); time.Now().Before(end) && !h.isSet(); {
		if err := send(); err != nil {
			return err
		}
	}
	return nil
}
