package flowplan

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/gorxe/gorxe/transport/flow"
	"github.com/gorxe/gorxe/transport/flow/core"
)

// Task is work of the sender that takes time and activates other tasks and flows. Each one has its
// own processor.
type Task struct {
	Name          string
	Period, Phase time.Duration
	After         []string // tasks and flows whose ends activate it; none: it has a period
	Time          time.Duration
}

var errAfter = errors.New("it has a period, phase, jitter, burst or rate, and starts after others: " +
	"choose one")

// task returns the task.
func (t *taskText) task() (Task, error) {
	to := Task{Name: t.Name, Phase: time.Duration(t.Phase), After: t.After,
		Time: time.Duration(t.Time)}
	if t.Period != nil {
		to.Period = time.Duration(*t.Period)
	}
	switch {
	case len(t.After) > 0 && (t.Period != nil || t.Phase != 0):
		return to, errAfter
	case len(t.After) == 0 && (to.Period < 1 || to.Period > core.MaxPeriod):
		return to, fmt.Errorf("the period is %v: choose 1ns to %v, or write after", to.Period,
			core.MaxPeriod)
	case to.Phase < 0 || to.Phase > core.MaxPeriod:
		return to, fmt.Errorf("the phase is %v: choose 0 to %v", to.Phase, core.MaxPeriod)
	case to.Time < 0 || to.Time > core.MaxPeriod:
		return to, fmt.Errorf("the time is %v: choose 0 to %v", to.Time, core.MaxPeriod)
	}
	return to, nil
}

// node is a task or a flow in the graph of a plan.
type node struct {
	name   string
	kind   string
	task   *Task // nil: a flow
	flow   int
	after  []int // nodes
	period time.Duration
	// The earliest and the latest time of its first activation and of its end. They are at most
	// never.
	early, late, earlyEnd, lateEnd time.Duration
	begin                          time.Duration // the earliest phase in its chain
}

// never bounds the times of a node.
const never = core.MaxPeriod

// nodes returns the tasks and then the flows, so that the index of flow i is len(p.Tasks) + i.
func (p *Plan) nodes() ([]node, error) {
	var list []node
	index := map[string]int{}
	for i := range p.Tasks {
		t := &p.Tasks[i]
		index[t.Name] = len(list)
		list = append(list, node{name: t.Name, kind: "task", task: t, period: t.Period,
			begin: t.Phase, early: t.Phase, late: t.Phase})
	}
	for i := range p.Flows {
		f := &p.Flows[i]
		index[f.Name] = len(list)
		list = append(list, node{name: f.Name, kind: "flow", flow: i, period: f.Period,
			begin: f.Phase, early: f.Phase, late: f.Phase + f.Jitter})
	}
	for i := range list {
		n := &list[i]
		after := p.after(n)
		for k, name := range after {
			at, ok := index[name]
			switch {
			case !ok:
				return nil, fmt.Errorf("%s %q is after %q, which does not exist", n.kind, n.name,
					name)
			case slices.Contains(after[:k], name):
				return nil, fmt.Errorf("%s %q is after %q twice", n.kind, n.name, name)
			}
			n.after = append(n.after, at)
		}
	}
	return list, nil
}

func (p *Plan) after(n *node) []string {
	if n.task != nil {
		return n.task.After
	}
	return p.Flows[n.flow].After
}

// sorted returns the nodes in an order in which each one comes after those that activate it.
func sorted(list []node) (order []int, err error) {
	const (
		unseen = iota
		open
		done
	)
	state := make([]int, len(list))
	var path []int
	var visit func(i int) error
	visit = func(i int) error {
		switch state[i] {
		case done:
			return nil
		case open:
			var names []string
			for _, k := range path[slices.Index(path, i):] {
				names = append(names, list[k].name)
			}
			slices.Reverse(names)
			return fmt.Errorf("%s activate each other in a cycle: remove one key after",
				strings.Join(append(names, names[0]), " -> "))
		}
		state[i] = open
		path = append(path, i)
		for _, k := range list[i].after {
			if err := visit(k); err != nil {
				return err
			}
		}
		path = path[:len(path)-1]
		state[i] = done
		order = append(order, i)
		return nil
	}
	for i := range list {
		if err := visit(i); err != nil {
			return nil, err
		}
	}
	return order, nil
}

// setPeriods gives nodes the period of those that activate them.
func (p *Plan) setPeriods(list []node, order []int) error {
	for _, i := range order {
		n := &list[i]
		for _, k := range n.after {
			before := &list[k]
			switch {
			case before.period == 0:
				return fmt.Errorf("%s %q is after flow %q, which has a token bucket and no period",
					n.kind, n.name, before.name)
			case n.period != 0 && n.period != before.period:
				return fmt.Errorf("%s %q is after %q and others with the periods %v and %v: use one "+
					"period", n.kind, n.name, before.name, before.period, n.period)
			}
			if n.period == 0 || before.begin < n.begin {
				n.begin = before.begin
			}
			n.period = before.period
		}
		switch {
		case n.task == nil && len(n.after) > 0:
			p.Flows[n.flow].Period = n.period
		case n.task != nil && n.task.Time > n.period:
			return fmt.Errorf("task %q takes %v, longer than its period of %v", n.name, n.task.Time,
				n.period)
		}
	}
	return nil
}

// chain computes the bounds. The jitter of a flow in a chain is the uncertainty of when its
// predecessors end, which depends on bounds, so they are computed until nothing changes.
func (p *Plan) chain() ([]flow.Response, error) {
	list, err := p.nodes()
	if err != nil {
		return nil, err
	}
	order, err := sorted(list)
	if err != nil {
		return nil, err
	}
	if err := p.setPeriods(list, order); err != nil {
		return nil, err
	}
	const rounds = 50
	for round := 0; ; round++ {
		bounds, err := flow.Bound(p.Link, p.Model())
		if err != nil {
			return nil, err
		}
		changed := false
		for _, i := range order {
			n := &list[i]
			p.times(list, n, bounds)
			if n.task != nil || len(n.after) == 0 {
				continue
			}
			f := &p.Flows[n.flow]
			jitter := n.late - n.early
			if round > rounds && jitter > f.Jitter {
				jitter = never
			}
			f.Begin, f.Earliest = n.begin, n.early
			if jitter > f.Jitter {
				f.Jitter, changed = jitter, true
			}
		}
		if !changed {
			return bounds, nil
		}
	}
}

// times computes when a node is activated and ends.
func (p *Plan) times(list []node, n *node, bounds []flow.Response) {
	for _, k := range n.after {
		n.early, n.late = max(n.early, list[k].earlyEnd), max(n.late, list[k].lateEnd)
	}
	if n.task != nil {
		n.earlyEnd, n.lateEnd = least(n.early, n.task.Time), least(n.late, n.task.Time)
		return
	}
	n.earlyEnd = least(n.early, p.shortest(n.flow))
	n.lateEnd = least(n.early, bounds[n.flow].Bound)
}

// least adds times, up to never.
func least(a, b time.Duration) time.Duration {
	if b > never || a+b > never {
		return never
	}
	return a + b
}

// shortest returns the shortest time that a message of a flow can take: that of its bytes.
func (p *Plan) shortest(i int) time.Duration {
	return time.Duration(float64(p.Flows[i].Size) * 8e9 / float64(p.Link.Rate))
}

// Chain returns the longest time from the beginning of the flow's chain until its message is done,
// from its bound. It is flow.Unbounded if there is no bound.
func (f *Flow) Chain(bound time.Duration) time.Duration {
	if bound == flow.Unbounded || bound > math.MaxInt64-f.Earliest {
		return flow.Unbounded
	}
	return f.Earliest - f.Begin + bound
}
