package flow

import (
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/roce"
)

// TestNoAllocations covers a message that is written, sent in parts with a deadline, received and
// read by a task, with Auto and Manual progress.
func TestNoAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	for _, p := range []roce.Progress{roce.Auto, roce.Manual} {
		t.Run(p.String(), func(t *testing.T) {
			b := newBed(t, testbed.Config{Options: []roce.Option{roce.WithProgress(p)}})
			from, to := b.drivenConnect(SenderConfig{Name: "hot"},
				ReceiverConfig{Channel: ChannelConfig{Name: "hot", Size: 4096}})
			s := b.schedulers(SchedulerConfig{})
			ch := b.channel(ChannelConfig{Name: "hot", Size: 4096})
			must(s[0].SendTask(SendConfig{Name: "hot", Channel: ch, To: from, Part: 1024,
				Deadline: time.Minute, OnLate: Drop}))(t)
			got := make(chan struct{}, 1)
			must(s[1].Task(TaskConfig{Name: "read",
				Inputs: []Input{{Channel: to.Channel(), Synchron: true}},
				Run: func(r *Run) {
					if m := r.Next(0); m == nil || len(m.Data) != 4000 {
						t.Errorf("Next() = %v", m)
					}
					got <- struct{}{}
				}}))(t)
			b.start(s)
			data := make([]byte, 4000)
			limit := within(t)
			one := func() {
				if err := ch.Write(data); err != nil {
					t.Fatal(err)
				}
				select {
				case <-got:
				case <-limit.Done():
					t.Fatal("the message did not arrive")
				}
			}
			for range 50 {
				one()
			}
			if n := testing.AllocsPerRun(100, one); n != 0 {
				t.Errorf("%v allocations per message, want 0", n)
			}
		})
	}
}
