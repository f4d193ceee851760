package flow

import (
	"fmt"
	"time"

	"github.com/gorxe/gorxe/transport/flow/core"
)

// MaxPriority is the highest priority of a task; 0 is the lowest.
const MaxPriority = core.MaxPriority

// Action is what happens to a task that exceeds its deadline.
type Action = core.Action

// The actions.
const (
	Warn  = core.Warn  // it continues
	Retry = core.Retry // it starts over, some times, and is then dropped
	Drop  = core.Drop  // it ends, unless all of its message is on the link already
)

// Input is an input of a task: of Source or of Channel.
type Input struct {
	Source  *Source
	Channel *Channel
	Mode    Mode // which messages of Channel the task reads

	// Threshold is the number of arrivals that satisfies the input; 0 means 1.
	Threshold int
	// Optional inputs are not needed for an activation. A task with a timer and an optional channel
	// reads the channel at its own rate.
	Optional bool
	// Final inputs activate the task alone.
	Final bool
	// Synchron inputs keep arrivals beyond the threshold for the next activation. Others start
	// again from 0 each time the task runs.
	Synchron bool
}

// TaskConfig describes a task that runs a function.
type TaskConfig struct {
	Name     string
	Priority int // 0 to MaxPriority, which is the most urgent
	// Inputs activate the task when all that are neither Optional nor Final are satisfied, or one
	// that is Final.
	Inputs []Input
	// Any makes all inputs Final, except the Optional ones.
	Any bool
	// Deadline is the time from the activation to the end of Run; 0 means none. A function that
	// runs is never interrupted: OnLate applies until it starts.
	Deadline time.Duration
	OnLate   Action
	Retries  int // of Retry, at least 1
	// Triggers and Writes are the events and channels that Run triggers and pushes. Start refuses
	// cycles among them.
	Triggers []*Source
	Writes   []*Channel
	// Run is the function. It is called by one goroutine at a time.
	Run func(*Run)
}

// Task is a task of a Scheduler.
type Task struct {
	s    *Scheduler
	id   core.TaskID
	pool core.PoolID
	name string

	f       func(*Run)
	run     Run
	readers []*Reader // by input; nil for sources
	*sending

	stats TaskStats // the part that core does not count; guarded by Scheduler.mu
}

// TaskStats are the counters of a task.
type TaskStats struct {
	core.Stats
	Sent      uint64 // messages that are in the receiver's memory
	SentBytes uint64 // their lengths
	Refused   uint64 // messages that a check did not let pass
	Failed    uint64 // messages that were lost because the connection broke
	Empty     uint64 // activations without a message
	Missed    uint64 // messages that a channel gave up before the task had read them
}

// Name returns the name of the task.
func (t *Task) Name() string { return t.name }

// Stats returns the counters of the task.
func (t *Task) Stats() TaskStats {
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	st := t.stats
	st.Stats = t.s.m.Stats(t.id)
	for _, r := range t.readers {
		if r != nil {
			st.Missed += r.Missed()
		}
	}
	if t.sending != nil {
		st.Missed += t.reader.Missed()
	}
	return st
}

// Task adds a task that runs a function.
func (s *Scheduler) Task(c TaskConfig) (*Task, error) {
	if c.Run == nil {
		return nil, fmt.Errorf("%w: task %q has no function Run", ErrConfig, c.Name)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t := &Task{s: s, name: c.Name, f: c.Run, pool: workers}
	t.run.t = t
	config := core.TaskConfig{Name: c.Name, Pool: workers, Priority: c.Priority, Any: c.Any,
		Deadline: c.Deadline, OnLate: c.OnLate, Retries: c.Retries}
	for _, o := range c.Triggers {
		if o == nil || o.s != s || o.tick {
			return nil, fmt.Errorf("%w: task %q triggers something else than an event of its scheduler",
				ErrConfig, c.Name)
		}
		config.Outputs = append(config.Outputs, o.id)
	}
	for _, ch := range c.Writes {
		if err := s.attach(ch); err != nil {
			return nil, err
		}
		config.Outputs = append(config.Outputs, ch.source)
	}
	if err := s.add(t, config, c.Inputs); err != nil {
		return nil, err
	}
	return t, nil
}

// add adds a task to the machine. The caller holds mu.
func (s *Scheduler) add(t *Task, c core.TaskConfig, inputs []Input) (err error) {
	defer func() {
		if err != nil {
			t.stop()
		}
	}()
	for i := range inputs {
		in := &inputs[i]
		var r *Reader
		if r, err = s.input(&c, t.name, i, in); err != nil {
			return err
		}
		t.readers = append(t.readers, r)
	}
	if t.id, err = s.m.AddTask(c); err != nil {
		return configError(err)
	}
	s.tasks = append(s.tasks, t)
	return nil
}

// stop ends the use of channels and of the sender. The caller holds mu.
func (t *Task) stop() {
	for _, r := range t.readers {
		if r != nil {
			r.Close()
		}
	}
	if t.sending == nil {
		return
	}
	complete := t.out.part > 0 && t.out.at == t.out.n // on its way to the receiver
	t.abandon()
	t.reader.Close()
	if t.to.task != t {
		return
	}
	t.to.task = nil
	t.to.layer.mu.Lock()
	t.to.used = false
	if t.out.remote >= 0 && !complete {
		t.to.free |= 1 << t.out.remote
	}
	t.to.layer.mu.Unlock()
}

// input adds an input to the configuration of a task. It returns the reader of a channel.
func (s *Scheduler) input(c *core.TaskConfig, task string, i int, in *Input) (*Reader, error) {
	to := core.Input{Threshold: in.Threshold, Optional: in.Optional, Final: in.Final,
		Synchron: in.Synchron}
	var r *Reader
	switch {
	case (in.Source == nil) == (in.Channel == nil):
		return nil, fmt.Errorf("%w: input %d of task %q needs a source or a channel", ErrConfig, i,
			task)
	case in.Source != nil && in.Source.s != s:
		return nil, fmt.Errorf("%w: input %d of task %q: source %q belongs to another scheduler",
			ErrConfig, i, task, in.Source.name)
	case in.Source != nil:
		to.Source = in.Source.id
	default:
		err := s.attach(in.Channel)
		if err == nil && c.Pool == workers {
			r, err = in.Channel.NewReader(in.Mode)
		}
		if err != nil {
			return nil, err
		}
		to.Source = in.Channel.source
	}
	c.Inputs = append(c.Inputs, to)
	return r, nil
}

// Run is one execution of a task's function. It is valid until the function returns.
type Run struct {
	t    *Task
	held []*Message
	hold time.Duration
}

// Task returns the task.
func (r *Run) Task() *Task { return r.t }

// Now returns the time of the scheduler's clock in nanoseconds.
func (r *Run) Now() int64 { return r.t.s.clock() }

// Activation returns when the task was activated, in nanoseconds of the scheduler's clock.
func (r *Run) Activation() int64 {
	r.t.s.mu.Lock()
	defer r.t.s.mu.Unlock()
	return r.t.s.m.Activation(r.t.id)
}

// Fired reports whether input i was satisfied when the task started, for example whether it was
// activated by data or by a timer.
func (r *Run) Fired(i int) bool {
	r.t.s.mu.Lock()
	defer r.t.s.mu.Unlock()
	return r.t.s.m.Fired(r.t.id, i)
}

// Next returns the next message of input i, or nil if there is none. It is released when the
// function returns.
func (r *Run) Next(i int) *Message {
	if i < 0 || i >= len(r.t.readers) || r.t.readers[i] == nil {
		return nil
	}
	m := r.t.readers[i].Next()
	if m != nil {
		r.held = append(r.held, m)
	}
	return m
}

// Hold keeps the worker occupied for d of the scheduler's clock after the function has returned, as
// a computation would. In virtual time it models the time that the function takes.
func (r *Run) Hold(d time.Duration) { r.hold = d }

// execute runs the function of a task that Take has returned. The caller holds mu, which is
// released meanwhile.
func (t *Task) execute() {
	s := t.s
	s.mu.Unlock()
	t.run.hold = 0
	t.f(&t.run)
	for _, m := range t.run.held {
		m.Release()
	}
	t.run.held = t.run.held[:0]
	s.mu.Lock()
	now := s.clock()
	if t.run.hold > 0 {
		s.m.FinishAt(now+int64(t.run.hold), t.id)
		return
	}
	s.m.Finish(now, t.id)
	s.m.Free(t.id)
}
