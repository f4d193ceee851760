package flow

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorxe/gorxe/transport/flow/core"
)

// SchedulerConfig describes a Scheduler.
type SchedulerConfig struct {
	// Layers are the layers whose channels and senders the tasks use. A layer has at most one
	// scheduler.
	Layers []*Layer
	// Clock returns the time in nanoseconds, which must not decrease. Nil means the system's clock,
	// and Start starts goroutines. Otherwise the program calls Progress, and nothing else runs.
	// Layers must have the same clock.
	Clock func() int64
	// Workers is the number of tasks that run at a time, sending tasks excepted; 0 means 1.
	Workers int
	// InFlight is the number of parts of messages in flight on each layer, at most MaxInFlight; 0
	// means 1. With 1 the link is idle for a round trip after each part. More parts are those of
	// one message, and of messages with higher priorities. A message waits for at most InFlight
	// parts of lower priorities.
	InFlight int
	// Trace, if not nil, is called for each event of the schedule, in their order. It must be short
	// and must not call methods of this package.
	Trace func(t *Task, e core.Event)
}

// Scheduler runs tasks by static priorities when their inputs are satisfied. Tasks, timers and
// events are added before Start. Its methods are safe for concurrent use.
type Scheduler struct {
	cfg   SchedulerConfig
	clock func() int64

	mu       sync.Mutex
	m        core.Machine
	tasks    []*Task
	channels []*Channel
	pending  []core.SourceID // to push after the machine's current step
	running  bool
	closed   bool
	wakeAt   int64 // when the timer goroutine wakes; 0: never
	cond     sync.Cond
	reports  chan Report
	lost     uint64
	kick     chan struct{}
	cancel   context.CancelFunc
	routines sync.WaitGroup
	stepping atomic.Bool // Progress runs
}

// workers is the pool of the tasks that run functions. That of layer i is i + 1.
const workers core.PoolID = 0

const (
	// maxWorkers bounds SchedulerConfig.Workers.
	maxWorkers = 1024
	// reportQueue is the capacity of the channel of Reports.
	reportQueue = 256
)

// NewScheduler creates a scheduler without tasks.
func NewScheduler(c SchedulerConfig) (*Scheduler, error) {
	if c.Workers == 0 {
		c.Workers = 1
	}
	if c.InFlight == 0 {
		c.InFlight = 1
	}
	switch {
	case c.Workers < 1 || c.Workers > maxWorkers:
		return nil, fmt.Errorf("%w: %d workers: choose 1 to %d", ErrConfig, c.Workers, maxWorkers)
	case c.InFlight < 1 || c.InFlight > MaxInFlight:
		return nil, fmt.Errorf("%w: %d parts in flight: choose 1 to %d", ErrConfig, c.InFlight,
			MaxInFlight)
	}
	s := &Scheduler{cfg: c, clock: c.Clock, kick: make(chan struct{}, 1),
		reports: make(chan Report, reportQueue)}
	s.cfg.Layers = slices.Clone(c.Layers)
	if s.clock == nil {
		s.clock = systemClock
	}
	s.cond.L = &s.mu
	s.m.Hook = s.event
	if _, err := s.m.AddPool(c.Workers); err != nil {
		return nil, err
	}
	for i, l := range s.cfg.Layers {
		if l == nil {
			s.detach(i)
			return nil, fmt.Errorf("%w: layer %d is nil", ErrConfig, i)
		}
		if (c.Clock == nil) != (l.cfg.Clock == nil) {
			s.detach(i)
			return nil, fmt.Errorf("%w: the scheduler and its layers need the same Clock",
				ErrConfig)
		}
		if _, err := s.m.AddLink(c.InFlight); err != nil {
			s.detach(i)
			return nil, err
		}
		if !l.sched.CompareAndSwap(nil, s) {
			s.detach(i)
			return nil, fmt.Errorf("%w: layer %d has another scheduler", ErrBusy, i)
		}
	}
	return s, nil
}

// detach undoes the use of the first n layers.
func (s *Scheduler) detach(n int) {
	for _, l := range s.cfg.Layers[:n] {
		l.sched.CompareAndSwap(s, nil)
	}
}

// Source activates tasks: a timer or an event.
type Source struct {
	s    *Scheduler
	id   core.SourceID
	name string
	tick bool
}

// Name returns the name of the source.
func (o *Source) Name() string { return o.name }

// Timer adds a source that activates tasks every period. The first time is phase after Start.
func (s *Scheduler) Timer(name string, period, phase time.Duration) (*Source, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id, err := s.m.AddTimer(name, period, phase)
	if err != nil {
		return nil, configError(err)
	}
	return &Source{s: s, id: id, name: name, tick: true}, nil
}

// Event adds a source that activates tasks when it is triggered.
func (s *Scheduler) Event(name string) (*Source, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id, err := s.m.AddSource(name)
	if err != nil {
		return nil, configError(err)
	}
	return &Source{s: s, id: id, name: name}, nil
}

// Trigger triggers an event. It has no effect on a timer, and before Start it only counts.
func (o *Source) Trigger() {
	if o.tick {
		return
	}
	o.s.mu.Lock()
	o.s.m.Push(o.s.clock(), o.id)
	o.s.unlock()
}

// configError makes an error of package core one of this package.
func configError(err error) error { return fmt.Errorf("%w: %w", ErrConfig, err) }

// attach makes a channel a source of the scheduler.
func (s *Scheduler) attach(c *Channel) error {
	l := c.layer
	if !slices.Contains(s.cfg.Layers, l) {
		return fmt.Errorf("%w: channel %q belongs to a layer that is not in SchedulerConfig.Layers",
			ErrConfig, c.cfg.Name)
	}
	if c.sched == s {
		return nil
	}
	id, err := s.m.AddSource(c.cfg.Name)
	if err != nil {
		return configError(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	c.sched, c.source = s, id
	s.channels = append(s.channels, c)
	return nil
}

// Start starts the timers, and with the system's clock the goroutines. The phases of timers count
// from now. It returns ErrConfig if tasks activate each other in a cycle.
func (s *Scheduler) Start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	if err := s.m.Start(s.clock()); err != nil {
		return configError(err)
	}
	s.running = true
	for _, c := range s.channels {
		for range c.unread() { // they came before
			s.pushed(c)
		}
	}
	if s.cfg.Clock == nil {
		ctx, cancel := context.WithCancel(context.Background())
		s.cancel = cancel
		s.routines.Go(func() { s.runTimers(ctx) })
		for range s.cfg.Workers {
			s.routines.Go(s.work)
		}
		for _, l := range s.cfg.Layers {
			if l.manual {
				s.routines.Go(func() { driveLayer(ctx, l) })
			}
		}
	}
	return nil
}

// Close stops the scheduler. It waits for functions that run, and abandons messages that have not
// been sent. Afterwards its layers, channels, senders and receivers can be used without it, or with
// another scheduler. Closing twice is harmless.
func (s *Scheduler) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed, s.running = true, false
	s.cond.Broadcast()
	s.mu.Unlock()
	if s.cancel != nil {
		s.cancel()
	}
	s.routines.Wait()
	s.detach(len(s.cfg.Layers))
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.tasks {
		t.stop()
	}
	close(s.reports)
	return nil
}

// pushed counts a message of a channel. The caller holds mu.
func (s *Scheduler) pushed(c *Channel) {
	if c.sched == s && s.running {
		s.m.Push(s.clock(), c.source)
	}
}

// unlock sends what can be sent, wakes the goroutines that have work, and unlocks mu.
func (s *Scheduler) unlock() {
	if s.running {
		s.dispatch()
	}
	if s.running && s.cfg.Clock == nil {
		if at, ok := s.m.NextTimeout(); ok && (s.wakeAt == 0 || at < s.wakeAt) {
			s.wakeAt = at
			signal(s.kick)
		}
		if s.m.Runnable(workers) {
			s.cond.Signal()
		}
	}
	s.mu.Unlock()
}

// dispatch starts parts of messages while the layers take them.
func (s *Scheduler) dispatch() {
	now := s.clock()
	for _, id := range s.pending {
		s.m.Push(now, id)
	}
	s.pending = s.pending[:0]
	for i := range s.cfg.Layers {
		for {
			id, restart, ok := s.m.Take(now, core.PoolID(i+1))
			if !ok {
				break
			}
			s.tasks[id].send(now, restart)
		}
	}
}

// happened handles what a layer reports. The caller holds mu.
func (s *Scheduler) happened(h happening) {
	if h.arrived != nil {
		s.pushed(h.arrived)
	}
	if h.sender == nil || h.sender.task == nil {
		return
	}
	t := h.sender.task
	if h.part {
		s.m.Free(t.id)
		if h.last {
			t.sent(s.clock())
		}
	}
	if h.credit || h.broken {
		s.m.Unpark(t.id)
	}
}

// abandoned handles the end of a layer, which reports no more completions: posts parts of sender
// end now. The caller holds mu.
func (s *Scheduler) abandoned(sender *Sender, posts int) {
	t := sender.task
	if t == nil {
		return
	}
	for range posts {
		s.m.Free(t.id)
	}
	if s.m.Running(t.id) {
		t.sent(s.clock())
	}
	s.m.Unpark(t.id)
}
