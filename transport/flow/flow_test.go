package flow

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/testbed"
)

// A periodic task writes a channel, its messages are sent, and a task of the receiver reads them.
func TestEndToEnd(t *testing.T) {
	for _, virtual := range []bool{true, false} {
		t.Run(map[bool]string{true: "virtual time", false: "real time"}[virtual],
			func(t *testing.T) {
				b := newBed(t, testbed.Config{})
				if virtual {
					b = virtualBed(t)
				}
				from, to := b.connect(SenderConfig{Name: "camera", Class: 5},
					ReceiverConfig{Channel: ChannelConfig{Name: "frames", Size: 10000}})
				s := b.schedulers(SchedulerConfig{})
				ch := b.channel(ChannelConfig{Name: "camera", Size: 10000})
				tick := must(s[0].Timer("30 Hz", time.Second/30, time.Millisecond))(t)
				n := byte(0)
				must(s[0].Task(TaskConfig{Name: "capture", Inputs: []Input{{Source: tick}},
					Writes: []*Channel{ch}, Run: func(*Run) {
						n++
						if err := ch.Write(bytes.Repeat([]byte{n}, 9999)); err != nil {
							t.Errorf("Write() = %v", err)
						}
					}}))(t)
				send := must(s[0].SendTask(SendConfig{Name: "send", Priority: 3, Channel: ch,
					To:   from,
					Part: 4096}))(t)
				const want = 5
				got := make(chan []byte, 100)
				must(s[1].Task(TaskConfig{Name: "detect",
					Inputs: []Input{{Channel: to.Channel(), Synchron: true}},
					Run: func(r *Run) {
						m := r.Next(0)
						if m == nil || m.Seq != uint64(m.Data[0]) || m.Time == 0 {
							t.Errorf("Next() = %+v", m)
							return
						}
						got <- slices.Clone(m.Data)
					}}))(t)
				for _, s := range s {
					if err := s.Start(); err != nil {
						t.Fatal(err)
					}
				}
				if virtual {
					if err := b.Sim.Wait(within(t),
						func() bool { return len(got) >= want }); err != nil {
						t.Fatal(err)
					}
				}
				for i := range want {
					select {
					case data := <-got:
						if !bytes.Equal(data, bytes.Repeat([]byte{byte(i + 1)}, 9999)) {
							t.Fatalf("message %d: wrong data", i)
						}
					case <-within(t).Done():
						t.Fatalf("message %d did not arrive", i)
					}
				}
				if st := send.Stats(); st.Sent < want-1 || st.SentBytes != st.Sent*9999 {
					t.Errorf("Stats() = %+v", st)
				}
				if to.Class() != 5 {
					t.Errorf("Class() = %d, want 5", to.Class())
				}
			})
	}
}

// The layer works without a scheduler.
func TestSendReceive(t *testing.T) {
	b := newBed(t, testbed.Config{})
	s, r := b.connect(SenderConfig{}, ReceiverConfig{Channel: ChannelConfig{Size: 100, Slots: 2,
		Overflow: Refuse}})
	mr := must(b.layer[0].Alloc(100))(t)
	defer func() { _ = mr.Close() }()
	ctx := within(t)
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		for i := range 10 {
			mr.Bytes()[0] = byte(i)
			if err := s.Send(ctx, mr, 0, i*10); err != nil {
				t.Errorf("Send(%d) = %v", i, err)
			}
		}
	}()
	for i := range 10 {
		m, err := r.Receive(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if len(m.Data) != i*10 || (i > 0 && m.Data[0] != byte(i)) {
			t.Errorf("message %d has %d bytes, the first is %d", i, len(m.Data), m.Data[0])
		}
		m.Release()
	}
	<-sent
}

// Calls that block work in processes of virtual time.
func TestSendReceiveVirtual(t *testing.T) {
	b := virtualBed(t)
	s, r := b.connect(SenderConfig{}, ReceiverConfig{Channel: ChannelConfig{Size: 100, Slots: 2,
		Overflow: Refuse}})
	mr := must(b.layer[0].Alloc(100))(t)
	defer func() { _ = mr.Close() }()
	ctx := within(t)
	const messages = 10
	b.Sim.Go(func() {
		for i := range messages {
			mr.Bytes()[0] = byte(i)
			if err := s.Send(ctx, mr, 0, 10+i); err != nil {
				t.Errorf("Send(%d) = %v", i, err)
			}
		}
	})
	b.Sim.Go(func() {
		for i := range messages {
			m, err := r.Receive(ctx)
			if err != nil {
				t.Errorf("Receive() = %v", err)
				return
			}
			if m.Seq != uint64(i+1) || len(m.Data) != 10+i || m.Data[0] != byte(i) {
				t.Errorf("message %d: number %d with %d bytes", i, m.Seq, len(m.Data))
			}
			m.Release()
		}
	})
	if err := b.Sim.Run(time.Second); err != nil {
		t.Fatal(err)
	}
}
