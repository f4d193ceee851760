package flow

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/flow/core"
)

// arrivals records the messages of channels in virtual time: name and first byte.
type arrivals struct {
	b    *bed
	list []string
	at   []time.Duration
	from int64
}

// watch adds a task to the receiving scheduler that records the messages of a channel.
func (a *arrivals) watch(s *Scheduler, c *Channel) {
	a.b.t.Helper()
	must(s.Task(TaskConfig{Name: "watch " + c.Name(), Inputs: []Input{{Channel: c, Synchron: true}},
		Run: func(r *Run) {
			m := r.Next(0)
			if m == nil {
				a.b.t.Errorf("channel %q: no message", c.Name())
				return
			}
			a.list = append(a.list, fmt.Sprintf("%s%d", c.Name(), m.Data[0]))
			a.at = append(a.at, time.Duration(a.b.Link.Now()-a.from))
		}}))(a.b.t)
}

// path is a channel, its task and its receiver.
type path struct {
	ch   *Channel
	task *Task
	from *Sender
	to   *Receiver
}

// path creates a channel and a task that sends it. c.Channel and c.To are set.
func (b *bed) path(s [2]*Scheduler, size int, c SendConfig, rc ChannelConfig) path {
	b.t.Helper()
	rc.Name, rc.Size = c.Name, size
	var p path
	p.from, p.to = b.connect(SenderConfig{Name: c.Name, Class: c.Priority % 8},
		ReceiverConfig{Channel: rc})
	p.ch = b.channel(ChannelConfig{Name: c.Name, Size: size, Slots: 8})
	c.Channel, c.To = p.ch, p.from
	p.task = must(s[0].SendTask(c))(b.t)
	return p
}

func (b *bed) start(s [2]*Scheduler) {
	b.t.Helper()
	for _, s := range s {
		if err := s.Start(); err != nil {
			b.t.Fatal(err)
		}
	}
}

// until runs virtual time until ready returns true.
func (b *bed) until(what string, ready func() bool) {
	b.t.Helper()
	end := b.Link.Now() + int64(time.Minute)
	err := b.Sim.Wait(within(b.t), func() bool { return ready() || b.Link.Now() > end })
	if err != nil || !ready() {
		b.t.Fatalf("%s: not in a minute of virtual time: %v", what, err)
	}
}

// run runs virtual time for d.
func (b *bed) run(d time.Duration) {
	b.t.Helper()
	b.Sim.Go(func() {
		if err := b.Sim.Sleep(d); err != nil {
			b.t.Error(err)
		}
	})
	if err := b.Sim.Run(2 * d); err != nil {
		b.t.Fatal(err)
	}
}

func write(t testing.TB, c *Channel, first byte, n int) {
	t.Helper()
	data := make([]byte, n)
	data[0] = first
	if err := c.Write(data); err != nil {
		t.Fatalf("Write() = %v", err)
	}
}

// A message with a high priority overtakes a long one between its parts. Without a split it waits.
func TestPreemption(t *testing.T) {
	const long = 1 << 20
	for _, c := range []struct {
		name string
		part int
		want []string
	}{
		{"parts of 64 KiB", 64 << 10, []string{"high1", "low1"}},
		{"no split", 0, []string{"low1", "high1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := virtualBed(t)
			s := b.schedulers(SchedulerConfig{})
			low := b.path(s, long, SendConfig{Name: "low", Priority: 1, Part: c.part},
				ChannelConfig{})
			high := b.path(s, 1000, SendConfig{Name: "high", Priority: 7}, ChannelConfig{})
			a := &arrivals{b: b}
			a.watch(s[1], low.to.Channel())
			a.watch(s[1], high.to.Channel())
			b.start(s)
			write(t, low.ch, 1, long)
			b.run(time.Millisecond)
			a.from = b.Link.Now()
			write(t, high.ch, 1, 1000)
			b.until("both messages", func() bool { return len(a.list) == 2 })
			if !slices.Equal(a.list, c.want) {
				t.Errorf("order %v, want %v", a.list, c.want)
			}
			// 64 KiB take 0.57 ms.
			if i := slices.Index(a.list, "high1"); c.part > 0 && a.at[i] > 700*time.Microsecond {
				t.Errorf("the message with the high priority took %v", a.at[i])
			}
		})
	}
}

// Three tasks that send four packets each in turns keep their order (experiment "packet order" of
// the paper).
func TestOrderOfEquals(t *testing.T) {
	b := virtualBed(t)
	s := b.schedulers(SchedulerConfig{})
	a := &arrivals{b: b}
	var paths []path
	for i := range 3 {
		p := b.path(s, 1000, SendConfig{Name: string(rune('a' + i)), Priority: 4},
			ChannelConfig{Slots: 8})
		a.watch(s[1], p.to.Channel())
		paths = append(paths, p)
	}
	b.start(s)
	var want []string
	for round := range 5 {
		for _, p := range paths {
			for k := range 4 {
				write(t, p.ch, byte(round*4+k), 1000)
				want = append(want, fmt.Sprintf("%s%d", p.ch.Name(), round*4+k))
			}
			n := len(want)
			b.until("a turn", func() bool { return len(a.list) == n })
		}
	}
	if !slices.Equal(a.list, want) {
		t.Errorf("order %v, want %v", a.list, want)
	}
	// All at once: FIFO by activation, so each task sends one message in turn.
	a.list, want = nil, nil
	for k := range 4 {
		for _, p := range paths {
			write(t, p.ch, byte(k), 1000)
			want = append(want, fmt.Sprintf("%s%d", p.ch.Name(), k))
		}
	}
	b.until("all messages", func() bool { return len(a.list) == len(want) })
	if !slices.Equal(a.list, want) {
		t.Errorf("order %v, want %v", a.list, want)
	}
}

// A receiver that releases nothing stops only its own sender, whatever the priorities.
func TestSlowReceiver(t *testing.T) {
	b := virtualBed(t)
	s := b.schedulers(SchedulerConfig{})
	stuck := b.path(s, 1000, SendConfig{Name: "stuck", Priority: 7, Deadline: time.Second},
		ChannelConfig{Slots: 2, Overflow: Refuse})
	ok := b.path(s, 1000, SendConfig{Name: "ok", Priority: 1}, ChannelConfig{})
	a := &arrivals{b: b}
	a.watch(s[1], ok.to.Channel())
	b.start(s)
	for i := range 4 {
		write(t, stuck.ch, byte(i), 1000)
	}
	write(t, ok.ch, 9, 1000)
	b.until("the other message", func() bool { return len(a.list) == 1 })
	b.run(2 * time.Second)
	if st := stuck.task.Stats(); st.Sent != 2 || st.Late != 1 {
		t.Errorf("Stats() = %+v, want 2 messages sent and 1 late", st)
	}
	r := <-s[0].Reports()
	if r.Task != "stuck" || r.Kind != Late {
		t.Errorf("report %+v, want that stuck is late", r)
	}
	for i := range 4 {
		m := must(stuck.to.Receive(within(t)))(t)
		if m.Data[0] != byte(i) {
			t.Errorf("message %d, want %d", m.Data[0], i)
		}
		m.Release()
	}
	if st := stuck.task.Stats(); st.Sent < 3 || st.Missed != 0 {
		t.Errorf("Stats() = %+v", st)
	}
}

// A camera at 30 Hz feeds one consumer at 30 Hz and another at 100 Hz from one channel, without
// copies, and is sent to two receivers.
func TestMultiRate(t *testing.T) {
	b := virtualBed(t)
	s := b.schedulers(SchedulerConfig{Workers: 2})
	p := b.path(s, 5000, SendConfig{Name: "camera", Priority: 3}, ChannelConfig{})
	second, to2 := b.connect(SenderConfig{Name: "copy"},
		ReceiverConfig{Channel: ChannelConfig{Name: "copy", Size: 5000}})
	must(s[0].SendTask(SendConfig{Name: "copy", Channel: p.ch, To: second}))(t)
	frame := must(s[0].Timer("frame", time.Second/30, 0))(t)
	n := byte(0)
	must(s[0].Task(TaskConfig{Name: "capture", Inputs: []Input{{Source: frame}},
		Writes: []*Channel{p.ch}, Run: func(*Run) { n++; write(t, p.ch, n, 5000) }}))(t)

	ch := p.to.Channel()
	var each, latest, copies []byte
	places := map[*byte]int{}
	see := func(m *Message, l *[]byte, by int) {
		if m != nil {
			*l = append(*l, m.Data[0])
			places[&m.Data[0]] |= by
		}
	}
	must(s[1].Task(TaskConfig{Name: "pedestrians", Priority: 2, Inputs: []Input{{Channel: ch}},
		Run: func(r *Run) {
			see(r.Next(0), &each, 1)
			r.Hold(5 * time.Millisecond)
		}}))(t)
	tick := must(s[1].Timer("100 Hz", 10*time.Millisecond, 0))(t)
	must(s[1].Task(TaskConfig{Name: "lanes", Priority: 1,
		Inputs: []Input{{Source: tick}, {Channel: ch, Mode: Latest, Optional: true}},
		Run:    func(r *Run) { see(r.Next(1), &latest, 2); r.Hold(time.Millisecond) }}))(t)
	must(s[1].Task(TaskConfig{Name: "copy", Inputs: []Input{{Channel: to2.Channel()}},
		Run: func(r *Run) { see(r.Next(0), &copies, 4) }}))(t)
	b.start(s)
	b.run(time.Second + 5*time.Millisecond)
	if len(each) < 30 || len(latest) < 95 || len(copies) < 30 {
		t.Errorf("%d, %d and %d runs, want 30, 100 and 30", len(each), len(latest), len(copies))
	}
	for i, v := range each {
		if v != byte(i+1) || copies[min(i, len(copies)-1)] != byte(min(i, len(copies)-1)+1) {
			t.Errorf("frame %d: %d", i, v)
		}
	}
	if !slices.IsSorted(latest) || latest[0] != 1 || latest[len(latest)-1] < 29 {
		t.Errorf("the fast consumer saw %v", latest)
	}
	if len(places) > 6 {
		t.Errorf("messages were at %d places, want at most the 3 slots of 2 channels", len(places))
	}
	shared := 0
	for _, by := range places {
		if by == 3 {
			shared++
		}
	}
	if shared == 0 {
		t.Error("the consumers share no memory")
	}
}

// Messages that are too old or that a check refuses are not sent, and are reported.
func TestChecks(t *testing.T) {
	b := virtualBed(t)
	s := b.schedulers(SchedulerConfig{})
	bad := errors.New("wrong signature")
	tick := must(s[0].Timer("tick", 10*time.Millisecond, 10*time.Millisecond))(t)
	undone := must(s[0].Event("not sent"))(t)
	var failures int
	must(s[0].Task(TaskConfig{Name: "failure", Inputs: []Input{{Source: undone}},
		Run: func(*Run) { failures++ }}))(t)
	p := b.path(s, 1000, SendConfig{Name: "checked", Priority: 3, MaxAge: 4 * time.Millisecond,
		Inputs: []Input{{Source: tick}}, NotDone: undone, Check: func(m *Message) error {
			if m.Data[0] == 13 {
				return bad
			}
			return nil
		}}, ChannelConfig{})
	a := &arrivals{b: b}
	a.watch(s[1], p.to.Channel())
	b.start(s)
	for _, c := range []struct {
		first byte
		wait  time.Duration // until it is pushed
		want  error
	}{{1, 9 * time.Millisecond, nil}, {2, 2 * time.Millisecond, ErrStale},
		{13, 17 * time.Millisecond, bad}} {
		b.run(c.wait)
		write(t, p.ch, c.first, 1000)
	}
	b.run(10 * time.Millisecond)
	if want := []string{"checked1"}; !slices.Equal(a.list, want) {
		t.Errorf("received %v, want %v", a.list, want)
	}
	for _, want := range []error{ErrStale, bad} {
		select {
		case r := <-s[0].Reports():
			if r.Task != "checked" || r.Kind != Refused || !errors.Is(r.Err, want) {
				t.Errorf("report %+v, want %v", r, want)
			}
		default:
			t.Fatalf("no report of %v", want)
		}
	}
	if st := p.task.Stats(); st.Refused != 2 || st.Sent != 1 || failures != 2 {
		t.Errorf("Stats() = %+v, %d failures", st, failures)
	}
}

// A deadline is disarmed by the completion. A late message is dropped, sent again or only reported.
func TestSendDeadline(t *testing.T) {
	const long = 1 << 20 // 8.9 ms
	for _, c := range []struct {
		name     string
		deadline time.Duration
		action   Action
		want     core.Stats // without times
		sent     uint64
		kinds    []ReportKind
	}{
		{"in time", 10 * time.Millisecond, Drop, core.Stats{Activations: 1, Finished: 1}, 1, nil},
		{"warn", 5 * time.Millisecond, Warn, core.Stats{Activations: 1, Finished: 1, Late: 1}, 1,
			[]ReportKind{Late}},
		{"drop", 5 * time.Millisecond, Drop, core.Stats{Activations: 1, Dropped: 1, Late: 1}, 0,
			[]ReportKind{Late, Dropped}},
		{"retry", 5 * time.Millisecond, Retry,
			core.Stats{Activations: 1, Dropped: 1, Late: 3, Retried: 2}, 0,
			[]ReportKind{Late, Retried, Late, Retried, Late, Dropped}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := virtualBed(t)
			s := b.schedulers(SchedulerConfig{})
			done, undone := must(s[0].Event("done"))(t), must(s[0].Event("not done"))(t)
			var results []bool
			must(s[0].Task(TaskConfig{Name: "result", Any: true,
				Inputs: []Input{{Source: done}, {Source: undone}},
				Run:    func(r *Run) { results = append(results, r.Fired(0)) }}))(t)
			p := b.path(s, long, SendConfig{Name: "long", Priority: 3, Part: 64 << 10,
				Deadline: c.deadline, OnLate: c.action, Retries: 2, Done: done, NotDone: undone},
				ChannelConfig{})
			a := &arrivals{b: b}
			a.watch(s[1], p.to.Channel())
			b.start(s)
			write(t, p.ch, 1, long)
			b.until("the result", func() bool { return len(results) > 0 })
			b.run(20 * time.Millisecond)
			st := p.task.Stats()
			st.MaxResponse, st.SumResponse = 0, 0
			if st.Stats != c.want || st.Sent != c.sent || len(a.list) != int(c.sent) {
				t.Errorf("Stats() = %+v, received %v", st, a.list)
			}
			if !slices.Equal(results, []bool{c.sent == 1}) {
				t.Errorf("results %v", results)
			}
			var kinds []ReportKind
			for len(s[0].Reports()) > 0 {
				kinds = append(kinds, (<-s[0].Reports()).Kind)
			}
			if !slices.Equal(kinds, c.kinds) {
				t.Errorf("reports %v, want %v", kinds, c.kinds)
			}
			// The receiver's slot is used again, and no memory is lost.
			for i := range 10 {
				p.task.sending.c.MaxAge = 0
				write(t, p.ch, byte(10+i), 1000)
				n := len(a.list)
				b.until("a short message", func() bool { return len(a.list) > n })
				if want := fmt.Sprintf("long%d", 10+i); a.list[n] != want {
					t.Errorf("received %s, want %s", a.list[n], want)
				}
			}
		})
	}
}

// With more work than the link carries, the high priority keeps its response time, and what is late
// is reported with its name.
func TestOverload(t *testing.T) {
	b := virtualBed(t)
	s := b.schedulers(SchedulerConfig{InFlight: 2})
	a := &arrivals{b: b}
	add := func(name string, priority, size int, period time.Duration) path {
		tick := must(s[0].Timer(name, period, 0))(t)
		p := b.path(s, size, SendConfig{Name: name, Priority: priority, Part: 16 << 10},
			ChannelConfig{})
		must(s[0].Task(TaskConfig{Name: "write " + name, Inputs: []Input{{Source: tick}},
			Writes: []*Channel{p.ch}, Run: func(*Run) { write(t, p.ch, 1, size) }}))(t)
		a.watch(s[1], p.to.Channel())
		return p
	}
	high := add("high", 7, 10000, 5*time.Millisecond)
	low := add("low", 1, 2<<20, 10*time.Millisecond) // 17.8 ms of work every 10 ms
	b.start(s)
	b.run(200 * time.Millisecond)
	h, l := high.task.Stats(), low.task.Stats()
	// Two parts of 16 KiB and its own 10,000 bytes take 0.4 ms.
	if h.Sent < 39 || h.Missed != 0 || h.MaxResponse > int64(500*time.Microsecond) {
		t.Errorf("high priority: %+v", h)
	}
	if l.Missed == 0 || l.Sent < 5 || l.Sent > 15 {
		t.Errorf("low priority: %+v", l)
	}
}

// A periodic task that is slower than its period is reported.
func TestOverrunReport(t *testing.T) {
	b := virtualBed(t)
	s := b.schedulers(SchedulerConfig{})
	tick := must(s[0].Timer("tick", time.Millisecond, 0))(t)
	slow := must(s[0].Task(TaskConfig{Name: "slow", Inputs: []Input{{Source: tick}},
		Run: func(r *Run) { r.Hold(2500 * time.Microsecond) }}))(t)
	b.start(s)
	b.run(10 * time.Millisecond)
	if r := <-s[0].Reports(); r.Task != "slow" || r.Kind != Overrun || r.N != 1 {
		t.Errorf("report %+v, want an overrun of slow", r)
	}
	if st := slow.Stats(); st.Overruns < 5 || st.Activations < 3 {
		t.Errorf("Stats() = %+v", st)
	}
}

// A connection that breaks fails the messages of its sender only.
func TestBrokenConnection(t *testing.T) {
	b := virtualBed(t)
	s := b.schedulers(SchedulerConfig{})
	broken := b.path(s, 1<<20, SendConfig{Name: "broken", Priority: 7, Part: 64 << 10},
		ChannelConfig{})
	ok := b.path(s, 1000, SendConfig{Name: "ok", Priority: 1}, ChannelConfig{})
	a := &arrivals{b: b}
	a.watch(s[1], ok.to.Channel())
	b.start(s)
	write(t, broken.ch, 1, 1<<20)
	write(t, broken.ch, 2, 1<<20)
	b.run(2 * time.Millisecond)
	if err := broken.to.Close(); err != nil {
		t.Fatal(err)
	}
	write(t, ok.ch, 5, 1000)
	b.until("the other message", func() bool { return len(a.list) == 1 })
	b.until("failures", func() bool { return broken.task.Stats().Failed == 2 })
	r := <-s[0].Reports()
	if r.Task != "broken" || r.Kind != Failed || !errors.Is(r.Err, ErrBroken) {
		t.Errorf("report %+v, want that broken failed", r)
	}
	if err := broken.from.Err(); !errors.Is(err, roce.ErrDisconnected) {
		t.Errorf("Err() = %v, want ErrDisconnected", err)
	}
	for i := range 20 { // its channel does not fill up
		write(t, broken.ch, byte(i), 1000)
	}
}

// Two runs of a schedule have the same packets at the same times, and the same events.
func TestReplay(t *testing.T) {
	run := func() (hash uint64, events []string) {
		rnd := uint64(1)
		b := replayBed(t, func() uint64 { rnd = rnd*6364136223846793005 + 1442695040888963407; return rnd })
		s := b.schedulers(SchedulerConfig{Trace: func(task *Task, e core.Event) {
			events = append(events, fmt.Sprint(e.Time, task.Name(), e.Kind))
		}})
		a := &arrivals{b: b}
		for i, name := range []string{"a", "b", "c"} {
			p := b.path(s, 200<<10, SendConfig{Name: name, Priority: i, Part: 32 << 10,
				Deadline: 3 * time.Millisecond, OnLate: Action(i), Retries: 1}, ChannelConfig{})
			tick := must(s[0].Timer(name, time.Duration(i+3)*time.Millisecond, 0))(t)
			must(s[0].Task(TaskConfig{Name: "write " + name, Inputs: []Input{{Source: tick}},
				Run: func(*Run) { write(t, p.ch, 1, 200<<10) }}))(t)
			a.watch(s[1], p.to.Channel())
		}
		b.start(s)
		b.run(50 * time.Millisecond)
		return b.Link.TraceHash(), events
	}
	h1, e1 := run()
	h2, e2 := run()
	if h1 != h2 || !slices.Equal(e1, e2) || len(e1) < 100 {
		t.Errorf("hashes %x and %x, %d and %d events", h1, h2, len(e1), len(e2))
	}
	if all := strings.Join(e1, " "); !strings.Contains(all, "late") {
		t.Error("no task was late")
	}
}
