package flowplan

import (
	"fmt"
	"time"

	"github.com/gorxe/gorxe/transport/flow"
	"github.com/gorxe/gorxe/transport/flow/core"
)

// Timeline is how flows share an ideal link for some time.
type Timeline struct {
	Plan   *Plan
	Length time.Duration
	Parts  []Part
	Marks  []Mark
}

// Part is one part of a message on the link.
type Part struct {
	Flow       int
	Start, End time.Duration
	Last       bool // of its message
}

// Mark is the arrival of a message, or its deadline if it is exceeded.
type Mark struct {
	Flow int
	At   time.Duration
	Late bool
}

// maxParts bounds the parts of a Timeline.
const maxParts = 20000

// NewTimeline sends the messages of p on an ideal link, from its phases on. Flows with token
// buckets use them as early as possible. Deadlines have no effect but their marks.
func NewTimeline(p *Plan, length time.Duration) (*Timeline, error) {
	l := &ideal{t: &Timeline{Plan: p, Length: length}, busy: -1}
	var err error
	if l.pool, err = l.m.AddLink(1); err != nil {
		return nil, err
	}
	if l.nodes, err = p.nodes(); err != nil {
		return nil, err
	}
	l.state = make([]nodeState, len(l.nodes))
	for i := range l.nodes {
		n, s := &l.nodes[i], &l.state[i]
		for _, k := range n.after {
			l.state[k].before = append(l.state[k].before, i)
		}
		s.ready = make([]int, len(n.after))
		switch {
		case len(n.after) > 0:
			s.next.next = never
		case n.task != nil:
			s.next = newArrivals(&Flow{Flow: flow.Flow{Period: n.period}, Phase: n.task.Phase})
		default:
			s.next = newArrivals(&p.Flows[n.flow])
		}
		if n.task != nil {
			continue
		}
		f := &p.Flows[n.flow]
		if s.parts, err = p.Link.PartTimes(f.Flow); err != nil {
			return nil, err
		}
		if s.source, err = l.m.AddSource(f.Name); err != nil {
			return nil, err
		}
		if _, err := l.m.AddTask(core.TaskConfig{Name: f.Name, Pool: l.pool, Priority: f.Priority,
			Inputs: []core.Input{{Source: s.source, Synchron: true}}}); err != nil {
			return nil, err
		}
	}
	if err := l.m.Start(0); err != nil {
		return nil, err
	}
	return l.t, l.run()
}

// ideal is an ideal link that flows share.
type ideal struct {
	t     *Timeline
	m     core.Machine
	pool  core.PoolID
	nodes []node
	state []nodeState
	ends  []taskEnd
	busy  int // flow whose part is on the link, -1: none
	end   time.Duration
}

// nodeState is what has happened to a node.
type nodeState struct {
	before []int    // nodes that it activates
	ready  []int    // by predecessor: how often it has ended since the node was activated
	next   arrivals // of a node with a period

	// Of a flow.
	source  core.SourceID
	parts   []time.Duration // how long the parts of a message take
	sent    int             // parts of the current message
	waiting []time.Duration // when the messages that have not ended were activated
}

// taskEnd is the end of a task.
type taskEnd struct {
	at   time.Duration
	node int
}

// flowNode returns the node of a flow.
func (l *ideal) flowNode(i int) int { return len(l.t.Plan.Tasks) + i }

// run sends messages until the end of the timeline.
func (l *ideal) run() error {
	for {
		now, ok := l.nextTime()
		if !ok || now >= l.t.Length {
			return nil
		}
		// What is activated now comes before the end of a part, which is the worst case.
		l.activateDue(now)
		if l.busy >= 0 && l.end <= now {
			l.endPart(now)
			l.activateDue(now) // what the end of a message activates
		}
		if err := l.startPart(now); err != nil {
			return err
		}
	}
}

// nextTime returns when something happens next.
func (l *ideal) nextTime() (next time.Duration, ok bool) {
	next = never
	for i := range l.state {
		next = min(next, l.state[i].next.next)
	}
	for _, e := range l.ends {
		next = min(next, e.at)
	}
	if l.busy >= 0 {
		next = min(next, l.end)
	}
	return next, next < never
}

// activateDue activates what is due.
func (l *ideal) activateDue(now time.Duration) {
	for i := range l.state {
		for s := &l.state[i]; s.next.next <= now; s.next.advance() {
			l.activate(i, now)
		}
	}
	for i := 0; i < len(l.ends); i++ {
		if e := l.ends[i]; e.at <= now {
			l.ends = append(l.ends[:i], l.ends[i+1:]...)
			l.ended(e.node, now)
			i = -1 // a task that takes no time may have ended, too
		}
	}
}

// activate starts a task, or sends a message.
func (l *ideal) activate(i int, now time.Duration) {
	n, s := &l.nodes[i], &l.state[i]
	if n.task != nil {
		l.ends = append(l.ends, taskEnd{now + n.task.Time, i})
		return
	}
	s.waiting = append(s.waiting, now)
	l.t.Marks = append(l.t.Marks, Mark{Flow: n.flow, At: now})
	l.m.Push(int64(now), s.source)
}

// ended activates what waits for a node that has ended.
func (l *ideal) ended(i int, now time.Duration) {
	for _, k := range l.state[i].before {
		s, complete := &l.state[k], true
		for j, before := range l.nodes[k].after {
			if before == i {
				s.ready[j]++
			}
			complete = complete && s.ready[j] > 0
		}
		if !complete {
			continue
		}
		for j := range s.ready {
			s.ready[j]--
		}
		l.activate(k, now)
	}
}

// startPart starts the next part if the link is idle.
func (l *ideal) startPart(now time.Duration) error {
	if l.busy >= 0 {
		return nil
	}
	id, _, ok := l.m.Take(int64(now), l.pool)
	if !ok {
		return nil
	}
	l.busy = int(id)
	s := &l.state[l.flowNode(l.busy)]
	l.end = now + s.parts[s.sent]
	l.t.Parts = append(l.t.Parts, Part{Flow: l.busy, Start: now, End: l.end,
		Last: s.sent == len(s.parts)-1})
	if len(l.t.Parts) > maxParts {
		return fmt.Errorf("more than %d parts in %v: choose a shorter time", maxParts, l.t.Length)
	}
	return nil
}

// endPart handles the end of a part.
func (l *ideal) endPart(now time.Duration) {
	i, id := l.busy, core.TaskID(l.busy)
	s, f := &l.state[l.flowNode(i)], &l.t.Plan.Flows[i]
	l.busy = -1
	l.m.Free(id)
	if s.sent++; s.sent < len(s.parts) {
		l.m.Requeue(int64(now), id)
		return
	}
	late := s.waiting[0] + f.EffectiveDeadline()
	if f.EffectiveDeadline() > 0 && now > late {
		l.t.Marks = append(l.t.Marks, Mark{Flow: i, At: late, Late: true})
	}
	s.sent, s.waiting = 0, s.waiting[1:]
	l.m.Finish(int64(now), id)
	l.ended(l.flowNode(i), now)
}

// arrivals are the times at which the messages of a flow arrive.
type arrivals struct {
	next  time.Duration
	phase time.Duration
	every float64 // nanoseconds
	n     int     // of the next message
	burst int     // messages that arrive at once at the beginning
}

func newArrivals(f *Flow) arrivals {
	a := arrivals{next: f.Phase, phase: f.Phase, every: float64(f.Period), burst: 1}
	if f.Period == 0 {
		a.every = float64(f.Size) * 8e9 / float64(f.Rate)
		a.burst = f.Burst / f.Size
	}
	return a
}

func (a *arrivals) advance() {
	a.n++
	a.next = a.phase + time.Duration(a.every*float64(max(0, a.n-a.burst+1)))
}
