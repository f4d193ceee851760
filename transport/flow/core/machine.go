package core

import (
	"fmt"
	"time"
)

// Machine is the state of a scheduler. The zero Machine is empty and ready for use. Objects are
// added before Start. Methods must not be called concurrently, and the time that is passed to them
// must not decrease.
type Machine struct {
	// Hook, if not nil, is called for each event, in their order. It must not call the machine.
	Hook func(Event)

	tasks   []task
	sources []source
	pools   []pool
	timers  heap
	started bool
}

// source produces arrivals.
type source struct {
	name   string
	period int64 // 0: not a timer
	phase  int64
	timer  timerID
	inputs []inputRef
}

// inputRef is one input of one task.
type inputRef struct {
	task TaskID
	n    int32
}

// AddPool adds a pool in which at most capacity units of work are in progress.
func (m *Machine) AddPool(capacity int) (PoolID, error) { return m.addPool(capacity, false) }

// AddLink adds a pool whose units of work, the parts of messages, share a link. While units are in
// progress, only the task that they belong to gets more, or a task with a higher priority.
// Otherwise units of lower priorities, or of later equals, would slow them down.
func (m *Machine) AddLink(capacity int) (PoolID, error) { return m.addPool(capacity, true) }

func (m *Machine) addPool(capacity int, link bool) (PoolID, error) {
	switch {
	case m.started:
		return 0, errStarted
	case capacity < 1:
		return 0, fmt.Errorf("%w: a pool of %d: choose at least 1", ErrConfig, capacity)
	case len(m.pools) == MaxPools:
		return 0, fmt.Errorf("%w: more than %d pools", ErrConfig, MaxPools)
	}
	m.pools = append(m.pools, newPool(capacity, link))
	return PoolID(len(m.pools) - 1), nil
}

// AddSource adds a source whose arrivals Push reports.
func (m *Machine) AddSource(name string) (SourceID, error) {
	switch {
	case m.started:
		return 0, errStarted
	case len(m.sources) == MaxSources:
		return 0, fmt.Errorf("%w: more than %d sources", ErrConfig, MaxSources)
	}
	m.sources = append(m.sources, source{name: name})
	return SourceID(len(m.sources) - 1), nil
}

// AddTimer adds a source with an arrival every period. The first one is phase after Start.
func (m *Machine) AddTimer(name string, period, phase time.Duration) (SourceID, error) {
	switch {
	case period < 1 || period > MaxPeriod:
		return 0, fmt.Errorf("%w: timer %q has the period %v: choose 1 ns to %v", ErrConfig, name,
			period, MaxPeriod)
	case phase < 0 || phase > MaxPeriod:
		return 0, fmt.Errorf("%w: timer %q has the start phase %v: choose 0 to %v", ErrConfig, name,
			phase, MaxPeriod)
	}
	id, err := m.AddSource(name)
	if err != nil {
		return 0, err
	}
	s := &m.sources[id]
	s.period, s.phase = int64(period), int64(phase)
	s.timer = m.timers.add(timer{kind: tick, of: int32(id)})
	return id, nil
}

var errStarted = fmt.Errorf("%w: the schedule has started: "+
	"add everything before", ErrConfig)

// Start starts the timers. It returns ErrConfig if tasks activate each other in a cycle.
func (m *Machine) Start(now int64) error {
	if m.started {
		return errStarted
	}
	if err := m.findCycle(); err != nil {
		return err
	}
	m.started = true
	for i := range m.sources {
		if s := &m.sources[i]; s.period > 0 {
			m.timers.set(s.timer, now+s.phase)
		}
	}
	for i := range m.tasks {
		m.activate(now, TaskID(i)) // arrivals before
	}
	return nil
}

// Push reports an arrival of a source. It activates the tasks whose inputs are satisfied now.
// Before Start it only counts.
func (m *Machine) Push(now int64, id SourceID) { m.arrive(now, id, 1) }

// arrive counts n arrivals.
func (m *Machine) arrive(now int64, id SourceID, n int) {
	s := &m.sources[id]
	for _, ref := range s.inputs {
		t := &m.tasks[ref.task]
		in := &t.inputs[ref.n]
		in.arrived = min(in.arrived+n, maxArrivals)
		missed := n - 1
		if t.state != idle {
			missed = n
		}
		if s.period > 0 && missed > 0 {
			t.stats.Overruns += uint64(missed)
			m.emit(Event{Time: now, Task: ref.task, Kind: Overrun, N: missed})
		}
		m.activate(now, ref.task)
	}
}

// Advance handles the timers that are due and returns their number. The time of what they cause is
// when they were due.
func (m *Machine) Advance(now int64) (n int) {
	for ; ; n++ {
		id, at := m.timers.first()
		if id < 0 || at > now {
			return n
		}
		t := m.timers.all[id]
		switch t.kind {
		case tick:
			s := &m.sources[t.of]
			missed := (now - at) / s.period
			if missed < maxCatchUp {
				missed = 0
			}
			m.timers.set(id, at+(missed+1)*s.period)
			m.arrive(at, SourceID(t.of), int(min(missed, maxArrivals-1))+1)
		case expiry:
			m.timers.clear(id)
			m.expire(at, TaskID(t.of))
		case hold:
			m.timers.clear(id)
			m.Finish(at, TaskID(t.of))
			m.Free(TaskID(t.of))
		}
	}
}

// NextTimeout returns the time at which Advance must be called; false if no timer runs.
func (m *Machine) NextTimeout() (int64, bool) {
	id, at := m.timers.first()
	return at, id >= 0
}

// Name returns the name of a task.
func (m *Machine) Name(id TaskID) string { return m.tasks[id].name }

// Stats returns the counters of a task.
func (m *Machine) Stats(id TaskID) Stats { return m.tasks[id].stats }

func (m *Machine) emit(e Event) {
	if m.Hook != nil {
		m.Hook(e)
	}
}
