package flow

import (
	"errors"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/roce"
)

// waitFor waits until ready returns true.
func waitFor(t *testing.T, what string, ready func() bool) {
	t.Helper()
	for end := time.Now().Add(testTime); !ready(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within %v", what, testTime)
		}
	}
}

// When the device fails, the messages of its tasks fail, and everything can be closed.
func TestDeviceFailure(t *testing.T) {
	for _, p := range []roce.Progress{roce.Auto, roce.Manual} {
		t.Run(p.String(), func(t *testing.T) {
			b := newBed(t, testbed.Config{Options: []roce.Option{roce.WithProgress(p)}})
			from, _ := b.drivenConnect(SenderConfig{Name: "victim"},
				ReceiverConfig{Channel: ChannelConfig{Name: "victim", Size: 100, Slots: 1,
					Overflow: Refuse}})
			s, err := NewScheduler(SchedulerConfig{Layers: b.layer[:1]})
			if err != nil {
				t.Fatal(err)
			}
			b.sched = append(b.sched, s)
			ch := b.channel(ChannelConfig{Name: "data", Size: 100, Slots: 4})
			task := must(s.SendTask(SendConfig{Name: "send", Channel: ch, To: from}))(t)
			if err := s.Start(); err != nil {
				t.Fatal(err)
			}
			stop := b.drive()
			for range 3 { // one is sent, and one waits for a slot
				write(t, ch, 1, 100)
			}
			waitFor(t, "a message", func() bool { return task.Stats().Sent == 1 })
			stop()
			if err := b.Port[0].Close(); err != nil {
				t.Fatal(err)
			}
			waitFor(t, "failures", func() bool { return task.Stats().Failed == 2 })
			r := <-s.Reports()
			if r.Kind != Failed || !errors.Is(r.Err, ErrBroken) {
				t.Errorf("report %+v, want that a message failed", r)
			}
			if err := from.Err(); !errors.Is(err, roce.ErrGone) {
				t.Errorf("Err() = %v, want ErrGone", err)
			}
		})
	}
}

// After a scheduler is closed, its channels and senders serve another one, or none.
func TestSecondScheduler(t *testing.T) {
	b := newBed(t, testbed.Config{})
	from, to := b.connect(SenderConfig{Name: "link"},
		ReceiverConfig{Channel: ChannelConfig{Name: "remote", Size: 100}})
	ch := b.channel(ChannelConfig{Name: "data", Size: 100})
	ctx := within(t)
	for i := range 100 { // more than a channel has readers
		s := must(NewScheduler(SchedulerConfig{Layers: b.layer[:1]}))(t)
		task := must(s.SendTask(SendConfig{Name: "send", Channel: ch, To: from}))(t)
		if err := s.Start(); err != nil {
			t.Fatal(err)
		}
		write(t, ch, byte(i), 10)
		m := must(to.Receive(ctx))(t)
		if m.Data[0] != byte(i) {
			t.Errorf("message %d, want %d", m.Data[0], i)
		}
		m.Release()
		waitFor(t, "the end of the message", func() bool { return task.Stats().Sent == 1 })
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if err := s.Start(); !errors.Is(err, ErrClosed) {
			t.Errorf("Start() after Close() = %v, want ErrClosed", err)
		}
	}
	mr := must(b.layer[0].Alloc(10))(t)
	defer func() { _ = mr.Close() }()
	if err := from.Send(ctx, mr, 0, 10); err != nil {
		t.Errorf("Send() = %v", err)
	}
}

// A closed reader keeps no messages, and gets none.
func TestReaderClose(t *testing.T) {
	b := newBed(t, testbed.Config{})
	ch := b.channel(ChannelConfig{Name: "data", Size: 8, Slots: 2, Overflow: Refuse})
	r := must(ch.NewReader(Each))(t)
	write(t, ch, 1, 8)
	write(t, ch, 2, 8)
	if err := ch.Write(nil); !errors.Is(err, ErrFull) {
		t.Errorf("Write() = %v, want ErrFull", err)
	}
	r.Close()
	r.Close()
	other := must(ch.NewReader(Each))(t)
	write(t, ch, 3, 8)
	if m := r.Next(); m != nil {
		t.Errorf("a closed reader got %v", m)
	}
	if m := other.Next(); m == nil || m.Data[0] != 3 {
		t.Errorf("the other reader got %v, want 3", m)
	}
}

// A message that a closed scheduler has sent in part does not keep the receiver's slot.
func TestCloseInMessage(t *testing.T) {
	b := virtualBed(t)
	const size = 1 << 20
	from, to := b.connect(SenderConfig{Name: "link"}, ReceiverConfig{
		Channel: ChannelConfig{Name: "remote", Size: size, Slots: 1, Overflow: Refuse}})
	ch := b.channel(ChannelConfig{Name: "data", Size: size})
	config := SchedulerConfig{Layers: b.layer[:1], Clock: b.Link.Now}
	for i := range 3 {
		s := must(NewScheduler(config))(t)
		b.Sim.Add(s)
		task := must(s.SendTask(SendConfig{Name: "send", Channel: ch, To: from, Part: 64 << 10}))(t)
		if err := s.Start(); err != nil {
			t.Fatal(err)
		}
		write(t, ch, byte(i), size)
		if i < 2 {
			b.run(time.Millisecond)
		} else {
			b.until("the message", func() bool { return task.Stats().Sent == 1 })
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if _, ok := <-s.Reports(); ok {
			t.Error("a report after Close()")
		}
	}
	if m := must(to.Receive(within(t)))(t); m.Data[0] != 2 || len(m.Data) != size {
		t.Errorf("received message %d, want 2", m.Data[0])
	}
}

// Only a reserved message can be pushed, once.
func TestPushTwice(t *testing.T) {
	b := newBed(t, testbed.Config{})
	one := b.channel(ChannelConfig{Name: "one", Size: 8})
	other := b.channel(ChannelConfig{Name: "other", Size: 8})
	r := must(one.NewReader(Each))(t)
	m := must(one.Reserve())(t)
	if err := other.Push(m, 1); !errors.Is(err, ErrConfig) {
		t.Errorf("Push() to another channel = %v, want ErrConfig", err)
	}
	if err := one.Push(m, 1); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := one.Push(m, 1); !errors.Is(err, ErrConfig) {
			t.Errorf("second Push() = %v, want ErrConfig", err)
		}
		r.Next().Release() // now the slot is free
		if err := one.Push(m, 1); !errors.Is(err, ErrConfig) {
			t.Errorf("Push() after Release() = %v, want ErrConfig", err)
		}
		m = must(one.Reserve())(t)
		if err := one.Push(m, 1); err != nil {
			t.Fatal(err)
		}
	}
}

// If a program has closed a layer before its memory, a further Close releases the rest.
func TestCloseBeforeMemory(t *testing.T) {
	bed, err := testbed.New(testbed.Config{
		Options: []roce.Option{roce.WithExpert(roce.Expert{MaxPD: 1})}})
	if err != nil {
		t.Fatal(err)
	}
	defer bed.Close()
	for range 2 {
		l := must(NewLayer(bed.Dev[0], LayerConfig{}))(t)
		mr := must(l.Alloc(8))(t)
		if err := l.Close(); !errors.Is(err, roce.ErrInUse) {
			t.Errorf("Close() = %v, want %v", err, roce.ErrInUse)
		}
		if err := errors.Join(mr.Close(), l.Close()); err != nil {
			t.Error(err)
		}
	}
}
