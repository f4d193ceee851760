package flow

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
)

// TestConfigErrors checks that each mistake has an error that names the object, before anything is
// sent.
func TestConfigErrors(t *testing.T) {
	b := newBed(t, testbed.Config{})
	from, to := b.connect(SenderConfig{Name: "link"},
		ReceiverConfig{Channel: ChannelConfig{Name: "remote", Size: 1000}})
	used, _ := b.connect(SenderConfig{Name: "used"},
		ReceiverConfig{Channel: ChannelConfig{Name: "remote", Size: 1000}})
	s := b.schedulers(SchedulerConfig{})
	ch := b.channel(ChannelConfig{Name: "data", Size: 1000})
	long := b.channel(ChannelConfig{Name: "long", Size: 1001})
	one := b.channel(ChannelConfig{Name: "one", Size: 1, Slots: 1})
	tick := must(s[0].Timer("tick", time.Second, 0))(t)
	foreign := must(s[1].Event("foreign"))(t)
	must(s[0].SendTask(SendConfig{Name: "user", Channel: ch, To: used}))(t)
	f := func(*Run) {}
	task := func(c TaskConfig) func() error {
		return func() error { _, err := s[0].Task(c); return err }
	}
	send := func(c SendConfig) func() error {
		return func() error {
			c.Name = "send"
			if c.Channel == nil {
				c.Channel = ch
			}
			if c.To == nil {
				c.To = from
			}
			_, err := s[0].SendTask(c)
			return err
		}
	}
	channel := func(c ChannelConfig) func() error {
		return func() error { _, err := b.layer[0].NewChannel(c); return err }
	}
	scheduler := func(c SchedulerConfig) func() error {
		return func() error { _, err := NewScheduler(c); return err }
	}
	for _, c := range []struct {
		name string
		do   func() error
		is   error
		says string
	}{
		{"class", func() error {
			_, err := b.layer[0].Dial(context.Background(), b.Addr(1, 1), SenderConfig{Class: 8})
			return err
		}, ErrConfig, "class 8: choose 0 to 7"},
		{"negative class", func() error {
			_, err := b.layer[0].Dial(context.Background(), b.Addr(1, 1), SenderConfig{Class: -1})
			return err
		}, ErrConfig, "class -1"},
		{"period", func() error { _, err := s[0].Timer("zero", 0, 0); return err }, ErrConfig,
			`timer "zero" has the period 0s`},
		{"size", channel(ChannelConfig{Name: "x"}), ErrConfig,
			`channel "x" has messages of 0 bytes`},
		{"slots", channel(ChannelConfig{Size: 1, Slots: 65}), ErrConfig, "65 slots"},
		{"overflow", channel(ChannelConfig{Size: 1, Overflow: 9}), ErrConfig, "unknown overflow"},
		{"memory", channel(ChannelConfig{Size: MaxSize, Slots: 64}), ErrConfig, "fewer slots"},
		{"workers", scheduler(SchedulerConfig{Workers: -1}), ErrConfig, "-1 workers"},
		{"in flight", scheduler(SchedulerConfig{InFlight: 17}), ErrConfig, "17 parts"},
		{"clock", scheduler(SchedulerConfig{Layers: b.layer[:1],
			Clock: func() int64 { return 0 }}), ErrConfig, "same Clock"},
		{"second scheduler", scheduler(SchedulerConfig{Layers: b.layer[:1]}), ErrBusy, "layer 0"},
		{"no function", task(TaskConfig{Name: "idle", Inputs: []Input{{Source: tick}}}), ErrConfig,
			`task "idle" has no function`},
		{"no input", task(TaskConfig{Name: "idle", Run: f}), ErrConfig, "nothing activates"},
		{"priority", task(TaskConfig{Name: "p", Priority: 64, Inputs: []Input{{Source: tick}},
			Run: f}), ErrConfig, "priority 64"},
		{"empty input", task(TaskConfig{Name: "e", Inputs: []Input{{}}, Run: f}), ErrConfig,
			"needs a source or a channel"},
		{"double input", task(TaskConfig{Inputs: []Input{{Source: tick, Channel: ch}}, Run: f}),
			ErrConfig, "needs a source or a channel"},
		{"foreign source", task(TaskConfig{Inputs: []Input{{Source: foreign}}, Run: f}), ErrConfig,
			"another scheduler"},
		{"foreign channel", task(TaskConfig{Inputs: []Input{{Channel: to.Channel()}}, Run: f}),
			ErrConfig, "not in SchedulerConfig.Layers"},
		{"foreign trigger", task(TaskConfig{Inputs: []Input{{Source: tick}}, Run: f,
			Triggers: []*Source{foreign}}), ErrConfig, "triggers something else"},
		{"timer as trigger", task(TaskConfig{Inputs: []Input{{Source: tick}}, Run: f,
			Triggers: []*Source{tick}}), ErrConfig, "triggers something else"},
		{"latest needs two slots", task(TaskConfig{Inputs: []Input{{Channel: one, Mode: Latest}},
			Run: f}), ErrConfig, "needs 2"},
		{"mode", task(TaskConfig{Inputs: []Input{{Channel: ch, Mode: 7}}, Run: f}), ErrConfig,
			"unknown mode"},
		{"no channel", func() error { _, err := s[0].SendTask(SendConfig{}); return err },
			ErrConfig,
			"needs a channel and a sender"},
		{"split", send(SendConfig{Split: []int{500, 400}}), ErrConfig, "add up to 900 bytes"},
		{"empty part", send(SendConfig{Split: []int{1000, 0}}), ErrConfig, "part 1"},
		{"negative part", send(SendConfig{Part: -1}), ErrConfig, "parts of -1"},
		{"many parts", send(SendConfig{Split: make([]int, maxParts+1)}), ErrConfig,
			"choose longer"},
		{"split and part", send(SendConfig{Part: 1, Split: []int{1000}}), ErrConfig, "choose one"},
		{"age", send(SendConfig{MaxAge: -1}), ErrConfig, "greatest age"},
		{"too long", send(SendConfig{Channel: long}), ErrTooLong, "takes 1000"},
		{"sender in use", send(SendConfig{To: used}), ErrBusy, `serves task "user"`},
		{"done is a timer", send(SendConfig{Done: tick}), ErrConfig, "must be events"},
		{"action", send(SendConfig{OnLate: Drop}), ErrConfig, "needs a deadline"},
		{"retries", send(SendConfig{OnLate: Retry, Deadline: 1}), ErrConfig, "0 retries"},
		{"write", func() error { return ch.Write(make([]byte, 1001)) }, ErrTooLong, "takes 1000"},
		{"push nil", func() error { return ch.Push(nil, 1) }, ErrConfig, "did not return"},
		{"peer's channel", func() error { return to.Channel().Write(nil) }, ErrConfig,
			"the peer writes"},
		{"close in use", func() error { return b.layer[0].Close() }, ErrBusy, "before the layer"},
		{"send by hand", func() error {
			return used.Send(context.Background(), nil, 0, 0)
		}, ErrBusy, "channel of its task"},
		{"foreign memory", func() error {
			return from.Send(context.Background(), ch.mr, 0, 2000)
		}, ErrTooLong, "2000 bytes"},
		{"memory outside", func() error {
			return from.Send(context.Background(), ch.mr, 1<<62, 1000)
		}, ErrConfig, "of a region of"},
		{"no memory", func() error {
			return from.Send(context.Background(), nil, 0, 10)
		}, ErrConfig, "not from Layer.Alloc"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := c.do()
			if !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %v, want %v with %q", err, c.is, c.says)
			}
		})
	}
	// A refused task leaves its sender usable.
	if err := send(SendConfig{Part: 100})(); err != nil {
		t.Errorf("SendTask() = %v", err)
	}
}

func TestTaskCycle(t *testing.T) {
	b := newBed(t, testbed.Config{})
	s := b.schedulers(SchedulerConfig{})
	ch := b.channel(ChannelConfig{Name: "data", Size: 10})
	e := must(s[0].Event("event"))(t)
	f := func(*Run) {}
	must(s[0].Task(TaskConfig{Name: "first", Inputs: []Input{{Channel: ch}}, Triggers: []*Source{e},
		Run: f}))(t)
	must(s[0].Task(TaskConfig{Name: "second", Inputs: []Input{{Source: e}}, Writes: []*Channel{ch},
		Run: f}))(t)
	err := s[0].Start()
	if !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), `"first", "second"`) {
		t.Errorf("Start() = %v, want a cycle of first and second", err)
	}
}

// The completions of a layer are shared by its connections.
func TestTooManyConnections(t *testing.T) {
	b := newBed(t, testbed.Config{})
	l, err := NewLayer(b.Dev[0], LayerConfig{Completions: senderNeeds - 1})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Dial(within(t), b.Addr(1, 7777), SenderConfig{}); !errors.Is(err, ErrTooMany) {
		t.Errorf("Dial() = %v, want ErrTooMany", err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if _, err := l.Dial(within(t), b.Addr(1, 7777), SenderConfig{}); !errors.Is(err, ErrClosed) {
		t.Errorf("Dial() after Close() = %v, want ErrClosed", err)
	}
}

// A channel gives up its oldest message, or refuses a new one, and counts what readers miss.
func TestChannelOverflow(t *testing.T) {
	b := newBed(t, testbed.Config{})
	for _, o := range []Overflow{DropOldest, Refuse} {
		ch := b.channel(ChannelConfig{Name: "data", Size: 8, Slots: 3, Overflow: o})
		r := must(ch.NewReader(Each))(t)
		last := must(ch.NewReader(Latest))(t)
		var refused int
		for i := range 5 {
			if err := ch.Write([]byte{byte(i)}); errors.Is(err, ErrFull) {
				refused++
			} else if err != nil {
				t.Fatal(err)
			}
		}
		want, missed := []byte{2, 3, 4}, uint64(2)
		if o == Refuse {
			want, missed = []byte{0, 1, 2}, 0
			if refused != 2 {
				t.Errorf("%d messages refused, want 2", refused)
			}
		}
		for range 2 {
			m := last.Next()
			if m == nil || m.Data[0] != want[2] {
				t.Errorf("latest message %v, want %d", m, want[2])
			}
			m.Release()
		}
		for _, w := range want {
			m := r.Next()
			if m == nil || m.Data[0] != w || m.Seq != uint64(w)+1 {
				t.Fatalf("message %v, want %d", m, w)
			}
			m.Release()
		}
		if m := r.Next(); m != nil || r.Missed() != missed {
			t.Errorf("message %v, %d missed, want none and %d", m, r.Missed(), missed)
		}
		// A held message stays.
		hold := last.Next()
		for i := range 10 {
			_ = ch.Write([]byte{byte(100 + i)})
		}
		if hold.Data[0] != want[2] {
			t.Errorf("a held message changed to %d", hold.Data[0])
		}
		hold.Release()
	}
}

// The packets of both directions carry the class, and the device sends them in this class.
func TestClassOnTheWire(t *testing.T) {
	b := newBed(t, testbed.Config{})
	classes := make(chan uint8, 1000)
	for i := range 2 {
		b.Link.SetFilter(i, 1-i, func(f []byte) (a loopback.Action) {
			if len(f) > 42 && f[12] == 8 && f[13] == 0 && f[36] == 0x12 && f[37] == 0xb7 {
				select {
				case classes <- f[15]:
				default:
				}
			}
			return a
		})
	}
	s, r := b.connect(SenderConfig{Class: 6}, ReceiverConfig{Channel: ChannelConfig{Size: 10}})
	for i, q := range []*roce.QP{s.qp, r.qp} {
		if a, err := q.Query(); err != nil || a.Class != 6 {
			t.Errorf("QP of side %d: class %d, %v, want 6", i, a.Class, err)
		}
	}
	for len(classes) > 0 { // the connection manager's
		<-classes
	}
	mr := must(b.layer[0].Alloc(10))(t)
	defer func() { _ = mr.Close() }()
	if err := s.Send(within(t), mr, 0, 10); err != nil {
		t.Fatal(err)
	}
	m := must(r.Receive(within(t)))(t)
	m.Release()
	for range 2 {
		if got := <-classes; got>>2 != 6*8 {
			t.Errorf("DSCP %d, want 48", got>>2)
		}
	}
}

// Waiting calls end with their context.
func TestContext(t *testing.T) {
	for _, p := range []roce.Progress{roce.Auto, roce.Manual} {
		b := newBed(t, testbed.Config{Options: []roce.Option{roce.WithProgress(p)}})
		_, r := b.drivenConnect(SenderConfig{}, ReceiverConfig{Channel: ChannelConfig{Size: 10}})
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
		defer cancel()
		if _, err := r.Receive(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Receive() = %v, want DeadlineExceeded", err)
		}
	}
}
