package core

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
)

// newMachine returns a machine with one pool and event sources.
func newMachine(t testing.TB, capacity, sources int) *Machine {
	t.Helper()
	m := &Machine{}
	if _, err := m.AddPool(capacity); err != nil {
		t.Fatal(err)
	}
	for range sources {
		if _, err := m.AddSource("source"); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

func add(t testing.TB, m *Machine, c TaskConfig) TaskID {
	t.Helper()
	id, err := m.AddTask(c)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func start(t testing.TB, m *Machine) {
	t.Helper()
	if err := m.Start(0); err != nil {
		t.Fatal(err)
	}
}

// TestInputs pushes arrivals of the sources 0 to 2, and runs the task at each dot.
func TestInputs(t *testing.T) {
	in := func(s SourceID) Input { return Input{Source: s} }
	for _, c := range []struct {
		name   string
		inputs []Input
		any    bool
		pushes string // sources; '.' runs the task if it is ready
		want   string // for each '.': '1' if it ran
	}{
		{"one", []Input{in(0)}, false, "..0..0.", "0" + "0" + "10" + "1"},
		{"and", []Input{in(0), in(1)}, false, "0.1.1.0.", "0101"},
		{"or", []Input{in(0), in(1)}, true, "0.1..", "110"},
		{"or absorbs both", []Input{in(0), in(1)}, true, "01..", "10"},
		{"threshold", []Input{{Source: 0, Threshold: 3}}, false, "00.0.00.0.", "0101"},
		{"surplus is lost", []Input{{Source: 0, Threshold: 2}}, false, "000..0.0.", "1001"},
		{"synchron keeps surplus", []Input{{Source: 0, Threshold: 2, Synchron: true}}, false,
			"000..0.0.", "1010"},
		{"synchron runs twice", []Input{{Source: 0, Synchron: true}}, false, "000....", "1110"},
		{"optional", []Input{in(0), {Source: 1, Optional: true}}, false, "1.0.", "01"},
		{"final", []Input{in(0), in(1), {Source: 2, Final: true}}, false, "2.0.1.02.1.", "10110"},
		{"final resets others", []Input{in(0), in(1), {Source: 2, Final: true}}, false,
			"02.1.0.", "101"},
		{"final keeps synchron", []Input{{Source: 0, Threshold: 2, Synchron: true}, in(1),
			{Source: 2, Final: true}}, false, "02.01.", "11"},
		{"or with threshold", []Input{{Source: 0, Threshold: 2}, in(1)}, true, "0.1.0.0.", "0101"},
		{"or ignores optional", []Input{in(0), {Source: 1, Optional: true}}, true, "1.0.", "01"},
		{"twice the same source", []Input{in(0), {Source: 0, Threshold: 2}}, false, "0.0.", "01"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newMachine(t, 1, 3)
			add(t, m, TaskConfig{Name: "task", Inputs: c.inputs, Any: c.any})
			start(t, m)
			var got []byte
			for i, p := range []byte(c.pushes) {
				if p != '.' {
					m.Push(int64(i), SourceID(p-'0'))
					continue
				}
				id, restart, ok := m.Take(int64(i), 0)
				if !ok {
					got = append(got, '0')
					continue
				}
				if !restart {
					t.Error("Take() does not start the task from its beginning")
				}
				got = append(got, '1')
				m.Finish(int64(i), id)
				m.Free(id)
			}
			if string(got) != c.want {
				t.Errorf("runs %s, want %s", got, c.want)
			}
		})
	}
}

// Arrivals while a task runs count for its next activation, which is queued when it ends.
func TestArrivalsWhileRunning(t *testing.T) {
	m := newMachine(t, 2, 1)
	a := add(t, m, TaskConfig{Name: "a", Inputs: []Input{{Source: 0}}})
	b := add(t, m, TaskConfig{Name: "b", Inputs: []Input{{Source: 0}}})
	start(t, m)
	m.Push(0, 0)
	if id, _, ok := m.Take(0, 0); !ok || id != a {
		t.Fatalf("Take() = %d, %v, want %d", id, ok, a)
	}
	m.Push(1, 0)
	m.Finish(2, a)
	m.Free(a)
	for _, want := range []TaskID{b, a} {
		if id, _, ok := m.Take(3, 0); !ok || id != want {
			t.Errorf("Take() = %d, %v, want %d", id, ok, want)
		}
	}
	if _, _, ok := m.Take(3, 0); ok {
		t.Error("Take() returned a task from a pool without capacity")
	}
	m.Finish(4, b)
	m.Free(b)
	if _, _, ok := m.Take(4, 0); ok {
		t.Error("Take() returned a task that was not activated")
	}
}

// A preempted task continues in front of its equals and behind higher priorities.
func TestRequeue(t *testing.T) {
	m := newMachine(t, 1, 3)
	low := add(t, m, TaskConfig{Name: "low", Priority: 1, Inputs: []Input{{Source: 0}}})
	equal := add(t, m, TaskConfig{Name: "equal", Priority: 1, Inputs: []Input{{Source: 1}}})
	high := add(t, m, TaskConfig{Name: "high", Priority: 2, Inputs: []Input{{Source: 2}}})
	start(t, m)
	m.Push(0, 0)
	m.Push(0, 1)
	var order []TaskID
	parts := map[TaskID]int{low: 3, equal: 1, high: 1}
	for now := int64(1); ; now++ {
		id, restart, ok := m.Take(now, 0)
		if !ok {
			break
		}
		if first := id != low || parts[low] == 3; restart != first {
			t.Errorf("task %d: restart = %v, want %v", id, restart, first)
		}
		order = append(order, id)
		if now == 2 {
			m.Push(now, 2)
		}
		if parts[id]--; parts[id] > 0 {
			m.Requeue(now, id)
		} else {
			m.Finish(now, id)
		}
		m.Free(id)
	}
	if want := []TaskID{low, low, high, low, equal}; !slices.Equal(order, want) {
		t.Errorf("order %v, want %v", order, want)
	}
}

// On a link, only the task whose units are in progress gets more, or one with a higher priority.
func TestLink(t *testing.T) {
	m := &Machine{}
	if _, err := m.AddLink(3); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := m.AddSource("source"); err != nil {
			t.Fatal(err)
		}
	}
	low := add(t, m, TaskConfig{Name: "low", Priority: 1, Inputs: []Input{{Source: 0}}})
	equal := add(t, m, TaskConfig{Name: "equal", Priority: 1, Inputs: []Input{{Source: 1}}})
	high := add(t, m, TaskConfig{Name: "high", Priority: 2, Inputs: []Input{{Source: 2}}})
	start(t, m)
	m.Push(0, 0)
	m.Push(0, 1)
	take := func(want TaskID) {
		t.Helper()
		id, _, ok := m.Take(0, 0)
		if ok != (want != none) || (ok && id != want) {
			t.Fatalf("Take() = %d, %v, want %d", id, ok, want)
		}
	}
	take(low)
	m.Requeue(0, low)
	take(low) // a second unit
	m.Finish(0, low)
	take(none) // equal would share the link with low
	m.Push(0, 2)
	take(high)
	m.Finish(0, high)
	take(none) // capacity
	m.Free(low)
	m.Free(low)
	take(none) // equal would slow down high
	m.Free(high)
	take(equal)
}

func TestTimers(t *testing.T) {
	m := newMachine(t, 1, 0)
	a, err := m.AddTimer("a", 10, 3)
	if err != nil {
		t.Fatal(err)
	}
	b, err := m.AddTimer("b", 20, 3)
	if err != nil {
		t.Fatal(err)
	}
	ta := add(t, m, TaskConfig{Name: "a", Inputs: []Input{{Source: a, Synchron: true}}})
	tb := add(t, m, TaskConfig{Name: "b", Inputs: []Input{{Source: b}}})
	var got []Event
	m.Hook = func(e Event) { got = append(got, e) }
	start(t, m)
	if at, ok := m.NextTimeout(); !ok || at != 3 {
		t.Fatalf("NextTimeout() = %d, %v, want 3", at, ok)
	}
	m.Advance(2)
	if len(got) != 0 {
		t.Fatalf("events %v before the phase", got)
	}
	m.Advance(13)
	m.Advance(45)
	want := []Event{
		{3, ta, Activated, 0}, {3, tb, Activated, 0}, {13, ta, Overrun, 1},
		{23, ta, Overrun, 1}, {23, tb, Overrun, 1}, {33, ta, Overrun, 1}, {43, ta, Overrun, 1},
		{43, tb, Overrun, 1},
	}
	if !slices.Equal(got, want) {
		t.Errorf("events %v, want %v", got, want)
	}
	if at, _ := m.NextTimeout(); at != 53 {
		t.Errorf("NextTimeout() = %d, want 53", at)
	}
	runs := 0
	for id, _, ok := m.Take(46, 0); ok; id, _, ok = m.Take(46, 0) {
		if id == ta {
			runs++
		}
		m.Finish(46, id)
		m.Free(id)
	}
	if st := m.Stats(ta); runs != 5 || st.Overruns != 4 || st.Finished != 5 {
		t.Errorf("%d runs, %+v; want 5 runs with 4 overruns", runs, st)
	}
}

// After a long pause the arrivals of a timer count at once.
func TestLongPause(t *testing.T) {
	m := newMachine(t, 1, 0)
	tick, err := m.AddTimer("tick", 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	id := add(t, m, TaskConfig{Name: "task", Inputs: []Input{{Source: tick}}})
	start(t, m)
	const pause = int64(time.Second)
	if n := m.Advance(pause); n != 1 {
		t.Errorf("Advance() = %d, want 1", n)
	}
	if st := m.Stats(id); st.Overruns != uint64(pause) || st.Activations != 1 {
		t.Errorf("Stats() = %+v, want %d overruns", st, pause)
	}
	if at, _ := m.NextTimeout(); at != pause+1 {
		t.Errorf("NextTimeout() = %d, want %d", at, pause+1)
	}
}

// TestDeadlines runs one task with a deadline of 10 in each of its states.
func TestDeadlines(t *testing.T) {
	// dropped ends a part after the deadline. The task must not continue.
	dropped := func(end func(m *Machine, now int64, id TaskID) bool) func(m *Machine) {
		return func(m *Machine) {
			id, _, _ := m.Take(5, 0)
			m.Advance(11)
			if end(m, 12, id) {
				panic("a dropped task continues")
			}
		}
	}
	for _, c := range []struct {
		name    string
		action  Action
		retries int
		do      func(m *Machine)
		want    Stats
	}{
		{"in time", Drop, 0, func(m *Machine) {
			id, _, _ := m.Take(5, 0)
			m.Finish(10, id)
			m.Advance(100)
		}, Stats{Activations: 1, Finished: 1, MaxResponse: 10, SumResponse: 10}},
		{"late and not noticed before", Warn, 0, func(m *Machine) {
			id, _, _ := m.Take(5, 0)
			m.Finish(11, id)
			m.Advance(100)
		}, Stats{Activations: 1, Finished: 1, Late: 1, MaxResponse: 11, SumResponse: 11}},
		{"warn once", Warn, 0, func(m *Machine) {
			m.Advance(50)
			id, _, _ := m.Take(60, 0)
			m.Finish(60, id)
		}, Stats{Activations: 1, Finished: 1, Late: 1, MaxResponse: 60, SumResponse: 60}},
		{"drop while queued", Drop, 0, func(m *Machine) {
			m.Advance(10)
			m.Advance(11)
			if _, _, ok := m.Take(12, 0); ok {
				panic("a dropped task runs")
			}
		}, Stats{Activations: 1, Late: 1, Dropped: 1}},
		{"drop between parts", Drop, 0, func(m *Machine) {
			id, _, _ := m.Take(5, 0)
			m.Requeue(6, id)
			m.Advance(11)
		}, Stats{Activations: 1, Late: 1, Dropped: 1}},
		{"drop at the next part", Drop, 0, dropped((*Machine).Requeue),
			Stats{Activations: 1, Late: 1, Dropped: 1}},
		{"drop while parked", Drop, 0, func(m *Machine) {
			id, _, _ := m.Take(5, 0)
			m.Park(5, id)
			m.Advance(11)
			m.Unpark(id)
		}, Stats{Activations: 1, Late: 1, Dropped: 1}},
		{"park after its deadline", Drop, 0, dropped((*Machine).Park),
			Stats{Activations: 1, Late: 1, Dropped: 1}},
		{"last part is not dropped", Drop, 0, func(m *Machine) {
			id, _, _ := m.Take(5, 0)
			m.Advance(11)
			m.Finish(12, id)
		}, Stats{Activations: 1, Finished: 1, Late: 1, MaxResponse: 12, SumResponse: 12}},
		{"retry", Retry, 2, func(m *Machine) {
			id, _, _ := m.Take(5, 0)
			m.Requeue(6, id)
			m.Advance(11)
			if _, restart, _ := m.Take(12, 0); !restart {
				panic("a late task does not start over")
			}
			m.Requeue(13, id)
			if _, restart, _ := m.Take(14, 0); restart {
				panic("it starts over twice")
			}
			m.Finish(20, id)
			m.Advance(100)
		}, Stats{Activations: 1, Finished: 1, Late: 1, Retried: 1, MaxResponse: 20,
			SumResponse: 20}},
		{"retries are limited", Retry, 2, func(m *Machine) {
			m.Advance(11)
			m.Advance(21)
			m.Advance(31)
			m.Advance(41)
		}, Stats{Activations: 1, Late: 3, Retried: 2, Dropped: 1}},
		{"the next activation is independent", Drop, 0, func(m *Machine) {
			m.Advance(11)
			m.Push(20, 0)
			m.Advance(30)
			id, _, _ := m.Take(30, 0)
			m.Finish(30, id)
		}, Stats{Activations: 2, Finished: 1, Late: 1, Dropped: 1, MaxResponse: 10,
			SumResponse: 10}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newMachine(t, 9, 1)
			id := add(t, m, TaskConfig{Name: "task", Inputs: []Input{{Source: 0}}, Deadline: 10,
				OnLate: c.action, Retries: c.retries})
			start(t, m)
			m.Push(0, 0)
			c.do(m)
			if got := m.Stats(id); got != c.want {
				t.Errorf("Stats() = %+v, want %+v", got, c.want)
			}
			if !m.Idle(id) {
				t.Error("the task has not ended")
			}
			if at, ok := m.NextTimeout(); ok {
				t.Errorf("a timer runs until %d", at)
			}
		})
	}
}

// A task that is late never delays a task with a higher priority.
func TestLateDoesNotBlock(t *testing.T) {
	m := newMachine(t, 1, 2)
	add(t, m, TaskConfig{Name: "low", Inputs: []Input{{Source: 0, Synchron: true}}, Deadline: 1,
		OnLate: Retry, Retries: 1 << 20})
	high := add(t, m, TaskConfig{Name: "high", Priority: 1, Inputs: []Input{{Source: 1}}})
	start(t, m)
	for now := int64(0); now < 1000; now += 10 {
		m.Advance(now)
		m.Push(now, 0)
		m.Push(now, 1)
		id, _, _ := m.Take(now, 0)
		if id != high {
			t.Fatalf("at %d: Take() = task %d, want %d", now, id, high)
		}
		m.Finish(now, id)
		m.Free(id)
		if now%30 == 0 { // less than its share
			id, _, _ = m.Take(now, 0)
			m.Finish(now, id)
			m.Free(id)
		}
	}
	if st := m.Stats(high); st.MaxResponse != 0 || st.Finished != 100 {
		t.Errorf("Stats() = %+v, want 100 immediate ends", st)
	}
}

func TestFinishAt(t *testing.T) {
	m := newMachine(t, 1, 1)
	id := add(t, m, TaskConfig{Name: "task", Inputs: []Input{{Source: 0, Synchron: true}}})
	start(t, m)
	m.Push(0, 0)
	m.Push(0, 0)
	m.Take(0, 0)
	m.FinishAt(7, id)
	m.Advance(6)
	if _, _, ok := m.Take(6, 0); ok {
		t.Error("the pool has capacity before the end of the task")
	}
	m.Advance(9)
	if _, _, ok := m.Take(9, 0); !ok || m.Activation(id) != 7 {
		t.Errorf("Take() = %v, activated at %d, want 7", ok, m.Activation(id))
	}
}

func TestErrors(t *testing.T) {
	one := []Input{{Source: 0}}
	for _, c := range []struct {
		name string
		add  func(m *Machine) error
		says string
	}{
		{"pool", func(m *Machine) error { _, err := m.AddPool(0); return err }, "at least 1"},
		{"period", func(m *Machine) error { _, err := m.AddTimer("fast", 0, 0); return err },
			`timer "fast" has the period 0s`},
		{"long period", func(m *Machine) error {
			_, err := m.AddTimer("slow", MaxPeriod+1, 0)
			return err
		}, "period"},
		{"phase", func(m *Machine) error { _, err := m.AddTimer("t", 1, -1); return err },
			"start phase"},
		{"priority", adding(TaskConfig{Name: "x", Priority: MaxPriority + 1, Inputs: one}),
			`task "x" has the priority 64`},
		{"no input", adding(TaskConfig{Name: "x"}), "nothing activates"},
		{"only optional", adding(TaskConfig{Inputs: []Input{{Optional: true}}}), "nothing activates"},
		{"source", adding(TaskConfig{Inputs: []Input{{Source: 9}}}), "no such source"},
		{"threshold", adding(TaskConfig{Inputs: []Input{{Threshold: -1}}}), "threshold -1"},
		{"optional final", adding(TaskConfig{Inputs: []Input{{Optional: true, Final: true}}}),
			"choose one"},
		{"action", adding(TaskConfig{Inputs: one, OnLate: Drop}), "needs a deadline"},
		{"unknown action", adding(TaskConfig{Inputs: one, OnLate: 9, Deadline: 1}), "unknown action"},
		{"retries", adding(TaskConfig{Inputs: one, OnLate: Retry, Deadline: 1}), "0 retries"},
		{"deadline", adding(TaskConfig{Inputs: one, Deadline: -1}), "deadline"},
		{"task's pool", adding(TaskConfig{Inputs: one, Pool: 1}), "no such pool"},
		{"output", adding(TaskConfig{Inputs: one, Outputs: []SourceID{5}}), "no such source"},
		{"inputs", adding(TaskConfig{Inputs: make([]Input, MaxInputs+1)}), "65 inputs"},
		{"started", func(m *Machine) error { _ = m.Start(0); return m.Start(0) }, "has started"},
		{"add to started", func(m *Machine) error {
			_ = m.Start(0)
			return adding(TaskConfig{Inputs: one})(m)
		}, "has started"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := c.add(newMachine(t, 1, 1))
			if !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %v, want ErrConfig with %q", err, c.says)
			}
		})
	}
}

func adding(c TaskConfig) func(m *Machine) error {
	return func(m *Machine) error { _, err := m.AddTask(c); return err }
}

func TestCycle(t *testing.T) {
	for _, c := range []struct {
		name     string
		optional bool
		want     string
	}{{"cycle", false, `the tasks "b", "c" activate`}, {"optional input", true, ""}} {
		t.Run(c.name, func(t *testing.T) {
			m := newMachine(t, 1, 4)
			add(t, m, TaskConfig{Name: "a", Inputs: []Input{{Source: 0}}, Outputs: []SourceID{1}})
			add(t, m, TaskConfig{Name: "b", Inputs: []Input{{Source: 1},
				{Source: 3, Optional: c.optional}}, Outputs: []SourceID{2}})
			add(t, m, TaskConfig{Name: "c", Inputs: []Input{{Source: 2}}, Outputs: []SourceID{3}})
			err := m.Start(0)
			if c.want == "" && err != nil {
				t.Errorf("Start() = %v", err)
			}
			if c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("Start() = %v, want %q", err, c.want)
			}
		})
	}
}

func TestStrings(t *testing.T) {
	if Retry.String() != "retry" || Action(9).String() != "invalid" ||
		Overrun.String() != "overrun" || Kind(99).String() != "invalid" {
		t.Errorf("%v %v %v %v", Retry, Action(9), Overrun, Kind(99))
	}
}

func TestNoAllocations(t *testing.T) {
	m := newMachine(t, 1, 1)
	tick, err := m.AddTimer("tick", 10, 0)
	if err != nil {
		t.Fatal(err)
	}
	for p := range 4 {
		add(t, m, TaskConfig{Name: "task", Priority: p, Inputs: []Input{{Source: 0}, {Source: tick}},
			Any: true, Deadline: 15 * time.Nanosecond, OnLate: Retry, Retries: 1})
	}
	m.Hook = func(Event) {}
	start(t, m)
	now := int64(0)
	if n := testing.AllocsPerRun(1000, func() {
		now += 3
		m.Advance(now)
		m.Push(now, 0)
		if id, restart, ok := m.Take(now, 0); ok {
			if restart {
				m.Requeue(now, id)
			} else {
				m.Finish(now, id)
			}
			m.Free(id)
		}
	}); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}
