package flow

import (
	"context"
	"runtime"
	"time"
)

// Progress does the work of the scheduler that is due, including the functions of tasks, and of the
// devices of its layers. It returns the amount of work, 0 for none. Programs call it in virtual
// time (SchedulerConfig.Clock), from one goroutine; loopback.Sim does.
func (s *Scheduler) Progress() (n int) {
	if !s.stepping.CompareAndSwap(false, true) {
		return 0 // a function of a task has called it
	}
	defer s.stepping.Store(false)
	for _, l := range s.cfg.Layers {
		n += l.Poll()
	}
	s.mu.Lock()
	if !s.running {
		s.mu.Unlock()
		return n
	}
	for more := true; more; {
		n += s.m.Advance(s.clock())
		id, _, ok := s.m.Take(s.clock(), workers)
		if ok {
			s.tasks[id].execute()
			n++
		}
		s.dispatch()
		more = ok
	}
	s.mu.Unlock()
	return n
}

// NextTimeout returns the time at which Progress must be called even if no packet arrives, in
// nanoseconds; false if no timer runs.
func (s *Scheduler) NextTimeout() (int64, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.running {
		return 0, false
	}
	return s.m.NextTimeout()
}

// runTimers handles timers until ctx ends.
func (s *Scheduler) runTimers(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.kick:
		case <-timer.C:
		}
		s.mu.Lock()
		s.m.Advance(s.clock())
		s.wakeAt = 0
		at, ok := s.m.NextTimeout()
		if ok {
			s.wakeAt = at
			timer.Reset(max(0, time.Duration(at-s.clock())))
		}
		s.unlock()
	}
}

// work runs functions of tasks until the scheduler is closed.
func (s *Scheduler) work() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.running {
		id, _, ok := s.m.Take(s.clock(), workers)
		if !ok {
			s.cond.Wait()
			continue
		}
		if s.m.Runnable(workers) {
			s.cond.Signal()
		}
		s.tasks[id].execute()
		s.unlock()
		s.mu.Lock()
	}
}

// driveLayer runs the protocol of a device with Manual progress until ctx ends or the device fails.
func driveLayer(ctx context.Context, l *Layer) {
	for ctx.Err() == nil {
		if l.Poll() > 0 {
			continue
		}
		if err := l.dev.Err(); err != nil {
			l.fail(err)
			return
		}
		runtime.Gosched()
	}
}
