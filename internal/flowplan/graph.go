package flowplan

import (
	"slices"
	"sync"
	"time"

	"github.com/gorxe/gorxe/transport/flow"
	"github.com/gorxe/gorxe/transport/flow/core"
)

// graph runs the tasks of a plan. Each task takes its time on a processor of its own, so that its
// end is a timer. It implements loopback.Node.
type graph struct {
	now    func() int64 // virtual time; nil: real time
	events map[string]*flow.Source

	alarms []alarm // in virtual time

	timed   map[string]time.Duration // phases of the tasks with timers
	started int64                    // when the schedule started
	chained map[string]int           // flows in chains
	ended   []int64                  // by flow in a chain: its messages that have ended
	chains  []time.Duration          // by flow: longest time since its chain has begun

	mu     sync.Mutex
	timers map[*time.Timer]bool // in real time; nil: closed
}

// alarm is when an event is triggered.
type alarm struct {
	at   int64
	what *flow.Source
}

// observe notes how long chains take. It is flow.SchedulerConfig.Trace.
func (r *runner) observe(t *flow.Task, e core.Event) {
	if phase, ok := r.timed[t.Name()]; ok && e.Kind == core.Activated && r.started == 0 {
		r.started = e.Time - int64(phase)
	}
	i, ok := r.chained[t.Name()]
	if !ok || e.Kind != core.Finished && e.Kind != core.Dropped {
		return
	}
	f := &r.plan.Flows[i]
	begin := r.started + int64(f.Begin) + r.ended[i]*int64(f.Period)
	if r.ended[i]++; e.Kind == core.Finished {
		r.chains[i] = max(r.chains[i], time.Duration(e.Time-begin))
	}
}

// workers returns the number of workers, so that no task waits for another one.
func (r *runner) workers() int { return len(r.plan.Flows) + len(r.plan.Tasks) }

// addGraph adds the tasks of the plan, and the events at the ends of tasks and flows.
func (r *runner) addGraph() error {
	r.events, r.timers = map[string]*flow.Source{}, map[*time.Timer]bool{}
	r.timed, r.chained = map[string]time.Duration{}, map[string]int{}
	if r.sim() != nil {
		r.graph.now = r.bed.Link.Now
	}
	n := len(r.plan.Flows)
	r.ended, r.chains = make([]int64, n), make([]time.Duration, n)
	for i := range r.plan.Flows {
		if f := &r.plan.Flows[i]; len(f.After) > 0 {
			r.chained[f.Name] = i
		} else {
			r.timed[writer(f)] = f.Phase
		}
	}
	for i := range r.plan.Tasks {
		if t := &r.plan.Tasks[i]; len(t.After) == 0 {
			r.timed[t.Name] = t.Phase
		}
	}
	for _, name := range r.activators() {
		e, err := r.sched.Event("end of " + name)
		if err != nil {
			return err
		}
		r.events[name] = e
	}
	for i := range r.plan.Tasks {
		if err := r.addTask(&r.plan.Tasks[i]); err != nil {
			return err
		}
	}
	return nil
}

// activators returns the names of all tasks and flows that activate others.
func (r *runner) activators() (list []string) {
	add := func(names []string) {
		for _, n := range names {
			if !slices.Contains(list, n) {
				list = append(list, n)
			}
		}
	}
	for i := range r.plan.Tasks {
		add(r.plan.Tasks[i].After)
	}
	for i := range r.plan.Flows {
		add(r.plan.Flows[i].After)
	}
	return list
}

// end returns the event at the end of a task or flow, nil if nothing waits for it.
func (r *runner) end(name string) *flow.Source { return r.events[name] }

// inputs returns an input for each task or flow.
func (r *runner) inputs(after []string) (list []flow.Input, err error) {
	for _, name := range after {
		list = append(list, flow.Input{Source: r.events[name], Synchron: true})
	}
	return list, nil
}

func (r *runner) addTask(t *Task) error {
	inputs, err := r.inputs(t.After)
	if err != nil {
		return err
	}
	if len(inputs) == 0 {
		tick, err := r.sched.Timer(t.Name, t.Period, t.Phase)
		if err != nil {
			return err
		}
		inputs = []flow.Input{{Source: tick, Synchron: true}}
	}
	c := flow.TaskConfig{Name: t.Name, Priority: flow.MaxPriority, Inputs: inputs}
	end := r.end(t.Name)
	if end != nil {
		c.Triggers = []*flow.Source{end}
	}
	c.Run = func(*flow.Run) {
		if end != nil {
			r.after(t.Time, end)
		}
	}
	_, err = r.sched.Task(c)
	return err
}

// writer returns the name of the task that writes the messages of a flow.
func writer(f *Flow) string { return "write " + f.Name }

// after triggers an event later.
func (g *graph) after(d time.Duration, what *flow.Source) {
	if g.now != nil {
		g.alarms = append(g.alarms, alarm{g.now() + int64(d), what})
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.timers == nil {
		return
	}
	var t *time.Timer
	t = time.AfterFunc(d, func() {
		g.mu.Lock()
		open := g.timers[t]
		delete(g.timers, t)
		g.mu.Unlock()
		if open {
			what.Trigger()
		}
	})
	g.timers[t] = true
}

// close stops the timers.
func (g *graph) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for t := range g.timers {
		t.Stop()
	}
	g.timers = nil
}

// Progress implements loopback.Node.
func (g *graph) Progress() (work int) {
	for i := 0; i < len(g.alarms); i++ {
		if a := g.alarms[i]; a.at <= g.now() {
			g.alarms = append(g.alarms[:i], g.alarms[i+1:]...)
			a.what.Trigger()
			work++
			i--
		}
	}
	return work
}

// NextTimeout implements loopback.Node.
func (g *graph) NextTimeout() (next int64, ok bool) {
	for _, a := range g.alarms {
		if !ok || a.at < next {
			next, ok = a.at, true
		}
	}
	return next, ok
}
