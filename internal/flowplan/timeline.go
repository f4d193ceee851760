package flowplan

import (
	"fmt"
	"time"

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
	t := &Timeline{Plan: p, Length: length}
	var m core.Machine
	pool, err := m.AddLink(1)
	if err != nil {
		return nil, err
	}
	arrivals := make([]arrivals, len(p.Flows))
	times := make([][]time.Duration, len(p.Flows))
	for i, f := range p.Flows {
		arrivals[i] = newArrivals(&f)
		if times[i], err = p.Link.PartTimes(f.Flow); err != nil {
			return nil, err
		}
		source, err := m.AddSource(f.Name)
		if err != nil {
			return nil, err
		}
		if _, err = m.AddTask(core.TaskConfig{Name: f.Name, Pool: pool, Priority: f.Priority,
			Inputs: []core.Input{{Source: source, Synchron: true}}}); err != nil {
			return nil, err
		}
	}
	if err := m.Start(0); err != nil {
		return nil, err
	}
	return t, t.fill(&m, pool, arrivals, times)
}

// fill runs the machine until the end of the timeline.
func (t *Timeline) fill(m *core.Machine, pool core.PoolID, arrivals []arrivals,
	times [][]time.Duration) error {
	sent := make([]int, len(times))                // parts of the current message
	waiting := make([][]time.Duration, len(times)) // arrivals of messages that have not ended
	busy, end, now := -1, time.Duration(0), time.Duration(0)
	for now < t.Length {
		first := -1
		for i := range arrivals {
			if first < 0 || arrivals[i].next < arrivals[first].next {
				first = i
			}
		}
		if at := arrivals[first].next; busy < 0 || at <= end {
			now = at
			arrivals[first].advance()
			waiting[first] = append(waiting[first], at)
			t.Marks = append(t.Marks, Mark{Flow: first, At: at})
			m.Push(int64(at), core.SourceID(first))
			if busy < 0 && arrivals[t.soonest(arrivals)].next == at {
				continue // all arrivals of this instant come first
			}
		} else {
			now = end
			t.end(m, busy, now, sent, waiting, len(times[busy]))
			busy = -1
		}
		if busy >= 0 {
			continue
		}
		if id, _, ok := m.Take(int64(now), pool); ok {
			busy = int(id)
			end = now + times[busy][sent[busy]]
			t.Parts = append(t.Parts, Part{Flow: busy, Start: now, End: end,
				Last: sent[busy] == len(times[busy])-1})
			if len(t.Parts) > maxParts {
				return fmt.Errorf("more than %d parts in %v: choose a shorter time", maxParts,
					t.Length)
			}
		}
	}
	return nil
}

func (t *Timeline) soonest(arrivals []arrivals) (first int) {
	for i := range arrivals {
		if arrivals[i].next < arrivals[first].next {
			first = i
		}
	}
	return first
}

// end handles the end of a part.
func (t *Timeline) end(m *core.Machine, i int, now time.Duration, sent []int,
	waiting [][]time.Duration, parts int) {
	id := core.TaskID(i)
	m.Free(id)
	if sent[i]++; sent[i] < parts {
		m.Requeue(int64(now), id)
		return
	}
	f := &t.Plan.Flows[i]
	late := waiting[i][0] + f.EffectiveDeadline()
	if f.EffectiveDeadline() > 0 && now > late {
		t.Marks = append(t.Marks, Mark{Flow: i, At: late, Late: true})
	}
	sent[i], waiting[i] = 0, waiting[i][1:]
	m.Finish(int64(now), id)
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
