package core

import "fmt"

type state uint8

const (
	idle state = iota
	ready
	running
	parked
)

// task is one task and its current activation.
type task struct {
	name     string
	pool     PoolID
	priority uint8
	action   Action
	deadline int64
	retries  int
	inputs   []input
	outputs  []SourceID

	state     state
	begun     bool   // has run since its activation
	restart   bool   // starts over when it runs next
	drop      bool   // ends at the next preemption point
	fired     uint64 // inputs that were satisfied when it started
	activated int64
	tries     int
	units     int // in progress
	expiry    timerID
	hold      timerID
	next      TaskID // in the queue
	stats     Stats
}

// AddTask adds a task.
func (m *Machine) AddTask(c TaskConfig) (TaskID, error) {
	switch {
	case m.started:
		return 0, errStarted
	case len(m.tasks) == MaxTasks:
		return 0, fmt.Errorf("%w: more than %d tasks", ErrConfig, MaxTasks)
	case c.Pool < 0 || int(c.Pool) >= len(m.pools):
		return 0, fmt.Errorf("%w: task %q: no such pool", ErrConfig, c.Name)
	case c.Priority < 0 || c.Priority > MaxPriority:
		return 0, fmt.Errorf("%w: task %q has the priority %d: choose 0 to %d", ErrConfig, c.Name,
			c.Priority, MaxPriority)
	case c.Deadline < 0 || c.Deadline > MaxPeriod:
		return 0, fmt.Errorf("%w: task %q has the deadline %v: choose 0 (none) to %v", ErrConfig,
			c.Name, c.Deadline, MaxPeriod)
	case c.OnLate > Drop:
		return 0, fmt.Errorf("%w: task %q: unknown action %d", ErrConfig, c.Name, c.OnLate)
	case c.OnLate != Warn && c.Deadline == 0:
		return 0, fmt.Errorf("%w: task %q: the action %v needs a deadline", ErrConfig, c.Name,
			c.OnLate)
	case c.OnLate == Retry && c.Retries < 1:
		return 0, fmt.Errorf("%w: task %q: %d retries: choose at least 1", ErrConfig, c.Name,
			c.Retries)
	case len(c.Inputs) > MaxInputs:
		return 0, fmt.Errorf("%w: task %q has %d inputs, at most %d are possible", ErrConfig,
			c.Name, len(c.Inputs), MaxInputs)
	}
	for _, o := range c.Outputs {
		if o < 0 || int(o) >= len(m.sources) {
			return 0, fmt.Errorf("%w: an output of task %q: no such source", ErrConfig, c.Name)
		}
	}
	id := TaskID(len(m.tasks))
	m.tasks = append(m.tasks, task{name: c.Name, pool: c.Pool, priority: uint8(c.Priority),
		action: c.OnLate, deadline: int64(c.Deadline), retries: c.Retries, outputs: c.Outputs})
	if err := m.addInputs(id, &c); err != nil {
		m.tasks = m.tasks[:id]
		return 0, err
	}
	t := &m.tasks[id]
	t.expiry = m.timers.add(timer{kind: expiry, of: int32(id)})
	t.hold = m.timers.add(timer{kind: hold, of: int32(id)})
	return id, nil
}

// activate queues a task if it is idle and its inputs are satisfied.
func (m *Machine) activate(now int64, id TaskID) {
	t := &m.tasks[id]
	if t.state != idle || !m.started || !t.satisfied() {
		return
	}
	t.state, t.activated = ready, now
	t.begun, t.restart, t.drop, t.tries = false, false, false, 0
	t.stats.Activations++
	if t.deadline > 0 {
		m.arm(t, now)
	}
	m.queue(id, false)
	m.emit(Event{Time: now, Task: id, Kind: Activated})
}

// arm starts the deadline. A task that ends exactly at its deadline is not late.
func (m *Machine) arm(t *task, now int64) { m.timers.set(t.expiry, now+t.deadline+1) }

// Take removes the next task from the queue of a pool that has capacity, and counts one unit of
// work for it. The caller runs the task, from its beginning if restart is true. Then it calls
// Finish, Requeue or Park, and Free when the unit of work is over.
func (m *Machine) Take(now int64, p PoolID) (id TaskID, restart, ok bool) {
	pool := &m.pools[p]
	if !m.runnable(pool) {
		return 0, false, false
	}
	id = m.dequeue(pool)
	t := &m.tasks[id]
	pool.begin(t)
	kind := Resumed
	if !t.begun {
		t.begun, kind = true, Started
		t.restart = true
		t.consume()
	}
	restart = t.restart
	t.state, t.restart = running, false
	m.emit(Event{Time: now, Task: id, Kind: kind})
	return id, restart, true
}

// Runnable reports whether Take would return a task.
func (m *Machine) Runnable(p PoolID) bool {
	return m.runnable(&m.pools[p])
}

// Free ends a unit of work of a task.
func (m *Machine) Free(id TaskID) {
	t := &m.tasks[id]
	m.pools[t.pool].end(t)
}

// Requeue offers a preemption point: a running task waits in front of its equals. The unit of work
// continues until Free. If the task has been dropped, it ends here, and Requeue returns false.
func (m *Machine) Requeue(now int64, id TaskID) bool {
	t := &m.tasks[id]
	t.state = ready
	if t.drop {
		m.dropNow(now, id)
		return false
	}
	m.queue(id, true)
	m.emit(Event{Time: now, Task: id, Kind: Requeued})
	return true
}

// Park makes a running task wait until Unpark. If the task has been dropped, it ends here, and Park
// returns false.
func (m *Machine) Park(now int64, id TaskID) bool {
	t := &m.tasks[id]
	t.state = parked
	if t.drop {
		m.dropNow(now, id)
		return false
	}
	m.emit(Event{Time: now, Task: id, Kind: Parked})
	return true
}

// Unpark queues a parked task behind its equals. It has no effect on others.
func (m *Machine) Unpark(id TaskID) {
	if t := &m.tasks[id]; t.state == parked {
		t.state = ready
		m.queue(id, false)
	}
}

// FinishAt ends a running task, and its unit of work, at a later time.
func (m *Machine) FinishAt(at int64, id TaskID) { m.timers.set(m.tasks[id].hold, at) }

// Finish ends a running task and disarms its deadline. If its inputs are satisfied again, it is
// queued behind its equals.
func (m *Machine) Finish(now int64, id TaskID) {
	t := &m.tasks[id]
	took := now - t.activated
	t.stats.Finished++
	t.stats.SumResponse += took
	t.stats.MaxResponse = max(t.stats.MaxResponse, took)
	if m.timers.due(t.expiry, now) {
		t.stats.Late++
		m.emit(Event{Time: now, Task: id, Kind: Late})
	}
	m.timers.clear(t.expiry)
	t.state = idle
	m.emit(Event{Time: now, Task: id, Kind: Finished})
	m.activate(now, id)
}

// Fired reports whether input n was satisfied when the task started.
func (m *Machine) Fired(id TaskID, n int) bool { return m.tasks[id].fired>>n&1 != 0 }

// Activation returns when the task was activated.
func (m *Machine) Activation(id TaskID) int64 { return m.tasks[id].activated }

// Idle reports whether the task waits for its inputs.
func (m *Machine) Idle(id TaskID) bool { return m.tasks[id].state == idle }

// Running reports whether the task runs.
func (m *Machine) Running(id TaskID) bool { return m.tasks[id].state == running }

// expire handles a deadline that is exceeded.
func (m *Machine) expire(now int64, id TaskID) {
	t := &m.tasks[id]
	t.stats.Late++
	m.emit(Event{Time: now, Task: id, Kind: Late})
	switch {
	case t.action == Warn:
	case t.action == Retry && t.tries < t.retries:
		t.tries++
		t.restart = true
		t.stats.Retried++
		m.arm(t, now-1)
		m.emit(Event{Time: now, Task: id, Kind: Retried})
	case t.state == running:
		t.drop = true
	case t.state == ready:
		m.unqueue(id)
		m.dropNow(now, id)
	case t.state == parked:
		m.dropNow(now, id)
	}
}

// dropNow ends a task that is neither running nor queued.
func (m *Machine) dropNow(now int64, id TaskID) {
	t := &m.tasks[id]
	if !t.begun {
		t.consume()
	}
	m.timers.clear(t.expiry)
	t.stats.Dropped++
	t.state = idle
	m.emit(Event{Time: now, Task: id, Kind: Dropped})
	m.activate(now, id)
}
