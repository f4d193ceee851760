package core

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// naive is the specification of a Machine with one pool, written for clarity: it keeps every
// arrival, and searches lists.
type naive struct {
	tasks    []*naiveTask
	timers   []naiveTimer
	queue    []*naiveTask // in the order in which equals run
	units    []*naiveTask // in progress
	capacity int
	link     bool
}

type naiveTask struct {
	c         TaskConfig
	id        TaskID
	arrivals  [][]int64 // by input
	state     string
	begun     bool
	restart   bool
	drop      bool
	activated int64
	late      int64 // when it becomes late, 0: never
	tries     int
	stats     Stats
}

type naiveTimer struct {
	source       SourceID
	period, next int64
}

func (n *naive) satisfied(t *naiveTask) bool {
	all, some := true, false
	for i, in := range t.c.Inputs {
		enough := len(t.arrivals[i]) >= max(in.Threshold, 1)
		switch {
		case in.Optional:
		case in.Final || t.c.Any:
			if enough {
				return true
			}
		default:
			some = true
			all = all && enough
		}
	}
	return all && some
}

func (n *naive) consume(t *naiveTask) {
	for i, in := range t.c.Inputs {
		need := max(in.Threshold, 1)
		if !in.Synchron {
			t.arrivals[i] = nil
		} else if len(t.arrivals[i]) >= need {
			t.arrivals[i] = t.arrivals[i][need:]
		}
	}
}

func (n *naive) activate(now int64, t *naiveTask) {
	if t.state != "idle" || !n.satisfied(t) {
		return
	}
	t.state, t.activated, t.begun, t.restart, t.drop, t.tries = "ready", now, false, false, false, 0
	t.stats.Activations++
	t.late = 0
	if t.c.Deadline > 0 {
		t.late = now + int64(t.c.Deadline) + 1
	}
	n.queue = append(n.queue, t)
}

func (n *naive) push(now int64, s SourceID, timer bool) {
	for _, t := range n.tasks {
		for i, in := range t.c.Inputs {
			if in.Source != s {
				continue
			}
			if timer && t.state != "idle" {
				t.stats.Overruns++
			}
			t.arrivals[i] = append(t.arrivals[i], now)
			n.activate(now, t)
		}
	}
}

// advance handles timers and deadlines in the order of their times. At equal times, timers come
// before deadlines, in the order of their creation.
func (n *naive) advance(now int64) {
	for {
		first := int64(-1)
		due := func(at int64) {
			if at != 0 && at <= now && (first < 0 || at < first) {
				first = at
			}
		}
		for _, t := range n.timers {
			due(t.next)
		}
		for _, t := range n.tasks {
			due(t.late)
		}
		if first < 0 {
			return
		}
		if i := slices.IndexFunc(n.timers, func(t naiveTimer) bool { return t.next == first }); i >= 0 {
			n.timers[i].next += n.timers[i].period
			n.push(first, n.timers[i].source, true)
			continue
		}
		i := slices.IndexFunc(n.tasks, func(t *naiveTask) bool { return t.late == first })
		n.expire(first, n.tasks[i])
	}
}

func (n *naive) expire(now int64, t *naiveTask) {
	t.late = 0
	t.stats.Late++
	switch {
	case t.c.OnLate == Warn:
	case t.c.OnLate == Retry && t.tries < t.c.Retries:
		t.tries++
		t.stats.Retried++
		t.restart = true
		t.late = now + int64(t.c.Deadline)
	case t.state == "running":
		t.drop = true
	default:
		n.queue = slices.DeleteFunc(n.queue, func(q *naiveTask) bool { return q == t })
		n.dropped(now, t)
	}
}

func (n *naive) dropped(now int64, t *naiveTask) {
	if !t.begun {
		n.consume(t)
	}
	t.state, t.late = "idle", 0
	t.stats.Dropped++
	n.activate(now, t)
}

func (n *naive) take() (t *naiveTask, restart bool) {
	if len(n.units) >= n.capacity || len(n.queue) == 0 {
		return nil, false
	}
	best := 0
	for i, q := range n.queue {
		if q.c.Priority > n.queue[best].c.Priority {
			best = i
		}
	}
	t = n.queue[best]
	for _, u := range n.units {
		if n.link && u.c.Priority >= t.c.Priority && slices.ContainsFunc(n.units,
			func(u *naiveTask) bool { return u != t }) {
			return nil, false
		}
	}
	n.queue = slices.Delete(n.queue, best, best+1)
	n.units = append(n.units, t)
	if !t.begun {
		t.begun, t.restart = true, true
		n.consume(t)
	}
	restart = t.restart
	t.state, t.restart = "running", false
	return t, restart
}

func (n *naive) finish(now int64, t *naiveTask) {
	took := now - t.activated
	t.stats.Finished++
	t.stats.SumResponse += took
	t.stats.MaxResponse = max(t.stats.MaxResponse, took)
	if t.late != 0 && t.late <= now {
		t.stats.Late++
	}
	t.state, t.late = "idle", 0
	n.activate(now, t)
}

// randomPair returns a machine and its specification with the same random tasks.
func randomPair(t *testing.T, r *rand.Rand) (*Machine, *naive, int) {
	sources := 1 + r.IntN(4)
	capacity := 1 + r.IntN(3)
	m, n := &Machine{}, &naive{capacity: capacity, link: r.IntN(2) == 0}
	pool := m.AddPool
	if n.link {
		pool = m.AddLink
	}
	if _, err := pool(capacity); err != nil {
		t.Fatal(err)
	}
	for range sources {
		if _, err := m.AddSource("source"); err != nil {
			t.Fatal(err)
		}
	}
	total := sources
	for range r.IntN(4) {
		period, phase := int64(1+r.IntN(40)), int64(1+r.IntN(40))
		id, err := m.AddTimer("timer", duration(period), duration(phase))
		if err != nil {
			t.Fatal(err)
		}
		n.timers = append(n.timers, naiveTimer{id, period, phase})
		total++
	}
	for range 1 + r.IntN(8) {
		c := TaskConfig{Name: "task", Priority: r.IntN(3), Any: r.IntN(4) == 0}
		for i := range 1 + r.IntN(3) {
			in := Input{Source: SourceID(r.IntN(total)), Threshold: r.IntN(4),
				Optional: i > 0 && r.IntN(5) == 0, Synchron: r.IntN(2) == 0}
			in.Final = !in.Optional && r.IntN(5) == 0
			c.Inputs = append(c.Inputs, in)
		}
		if r.IntN(2) == 0 {
			c.Deadline = duration(int64(1 + r.IntN(60)))
			c.OnLate = Action(r.IntN(3))
			c.Retries = 1 + r.IntN(2)
		}
		id := add(t, m, c)
		n.tasks = append(n.tasks, &naiveTask{c: c, id: id, state: "idle",
			arrivals: make([][]int64, len(c.Inputs))})
	}
	start(t, m)
	return m, n, sources
}

// TestRandomSchedules compares a Machine with its specification: which task runs next, from where,
// and all counters. So it covers priorities, FIFO among equals, AND and OR, thresholds, final,
// optional and synchron inputs, preemption points and deadlines.
func TestRandomSchedules(t *testing.T) {
	seeds := uint64(1200)
	if testing.Short() {
		seeds = 300
	}
	var sum Stats
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 18))
		m, n, sources := randomPair(t, r)
		running := map[TaskID]*naiveTask{}
		var parked []*naiveTask
		now := int64(0)
		for step := range 300 {
			now += int64(r.IntN(8))
			m.Advance(now)
			n.advance(now)
			where := fmt.Sprintf("seed %d, step %d", seed, step)
			switch r.IntN(5) {
			case 0, 1:
				s := SourceID(r.IntN(sources))
				m.Push(now, s)
				n.push(now, s, false)
			case 2:
				id, restart, ok := m.Take(now, 0)
				want, wantRestart := n.take()
				if ok != (want != nil) || ok && (id != want.id || restart != wantRestart) {
					t.Fatalf("%s: Take() = %d, %v, %v, want %+v, %v", where, id, restart, ok, want,
						wantRestart)
				}
				if ok {
					running[id] = want
				}
			case 3:
				if len(n.units) > 0 {
					m.Free(n.units[0].id)
					n.units = n.units[1:]
				}
			case 4:
				parked = step3(t, r, now, m, n, running, parked)
			}
			for _, w := range n.tasks {
				if got := m.Stats(w.id); got != w.stats {
					t.Fatalf("%s: task %d has %+v, want %+v", where, w.id, got, w.stats)
				}
			}
		}
		for _, w := range n.tasks {
			sum.Late += w.stats.Late
			sum.Dropped += w.stats.Dropped
			sum.Retried += w.stats.Retried
			sum.Overruns += w.stats.Overruns
			sum.Finished += w.stats.Finished
		}
	}
	if sum.Late == 0 || sum.Dropped == 0 || sum.Retried == 0 || sum.Overruns == 0 ||
		sum.Finished == 0 {
		t.Errorf("not everything happened: %+v", sum)
	}
}

// step3 ends, requeues or parks a random running task, or queues a parked one again.
func step3(t *testing.T, r *rand.Rand, now int64, m *Machine, n *naive,
	running map[TaskID]*naiveTask, parked []*naiveTask) []*naiveTask {
	if len(parked) > 0 && r.IntN(3) == 0 {
		w := parked[0]
		m.Unpark(w.id)
		if w.state == "parked" {
			w.state = "ready"
			n.queue = append(n.queue, w)
		}
		return parked[1:]
	}
	for _, w := range n.tasks { // not the map: its order is random
		if running[w.id] == nil {
			continue
		}
		delete(running, w.id)
		switch r.IntN(3) {
		case 0:
			m.Finish(now, w.id)
			n.finish(now, w)
		case 1:
			w.state = "ready"
			if goesOn := m.Requeue(now, w.id); goesOn == w.drop {
				t.Fatalf("Requeue() = %v, want %v", goesOn, !w.drop)
			}
			if w.drop {
				n.dropped(now, w)
			} else {
				n.queue = slices.Insert(n.queue, 0, w)
			}
		case 2:
			w.state = "parked"
			if goesOn := m.Park(now, w.id); goesOn == w.drop {
				t.Fatalf("Park() = %v, want %v", goesOn, !w.drop)
			}
			if w.drop {
				n.dropped(now, w)
			} else {
				parked = append(parked, w)
			}
		}
		break
	}
	return parked
}

func duration(n int64) time.Duration { return time.Duration(n) }
