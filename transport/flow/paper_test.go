package flow

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// latencies sends messages of three priorities at about the same time, in several rounds, and
// returns how long those of the highest priority take until a task of the receiver has them.
// Without a scheduler, all are sent at once. With classes, each priority has its own traffic class.
func latencies(t *testing.T, size, part int, scheduled, classes bool) (list []time.Duration) {
	t.Helper()
	b := virtualBed(t)
	r := rand.New(rand.NewPCG(1, uint64(size)))
	s := b.schedulers(SchedulerConfig{})
	var write [3]func() // by priority
	arrived := 0
	var start int64
	for i := range write {
		rc := ReceiverConfig{Channel: ChannelConfig{Name: "paper", Size: size}}
		sc := SenderConfig{Name: "paper"}
		if classes {
			sc.Class = i
		}
		from, to := b.connect(sc, rc)
		must(s[1].Task(TaskConfig{Name: "read", Inputs: []Input{{Channel: to.Channel()}},
			Run: func(*Run) {
				if arrived++; i == len(write)-1 {
					list = append(list, time.Duration(b.Link.Now()-start))
				}
			}}))(t)
		if !scheduled {
			mr := must(b.layer[0].Alloc(size))(t)
			t.Cleanup(func() { _ = mr.Close() })
			sending := false
			write[i] = func() {
				b.until("the end of Send", func() bool { return !sending })
				sending = true
				b.Sim.Go(func() {
					defer func() { sending = false }()
					if err := from.Send(within(t), mr, 0, size); err != nil {
						t.Error(err)
					}
				})
			}
			continue
		}
		ch := b.channel(ChannelConfig{Name: "paper", Size: size})
		must(s[0].SendTask(SendConfig{Name: "paper", Priority: i, Channel: ch, To: from,
			Part: part}))(t)
		write[i] = func() {
			if m, err := ch.Reserve(); err != nil || ch.Push(m, size) != nil {
				t.Errorf("Reserve() = %v", err)
			}
		}
	}
	b.start(s)
	const rounds = 12
	for round := range rounds {
		first := r.Perm(len(write))
		for n, i := range first {
			if i == len(write)-1 {
				start = b.Link.Now()
			}
			if round == 0 && i != len(write)-1 {
				continue // alone: the minimum
			}
			if write[i](); n == 0 && round > 0 {
				if err := b.Sim.Sleep(time.Duration(1 + r.IntN(int(time.Millisecond)))); err != nil {
					t.Fatal(err)
				}
			}
		}
		want := 1 + round*len(write)
		b.until("the messages of a round", func() bool { return arrived == want })
	}
	return list
}

// With a scheduler, the latency of the highest priority hardly depends on others (experiment
// "communication latency" of the paper), and with traffic classes not at all. Without both, all
// share the link.
func TestPaperLatency(t *testing.T) {
	const size = 1 << 20
	for _, c := range []struct {
		name      string
		part      int
		scheduled bool
		classes   bool
		low, high float64 // range of maximum / minimum
	}{
		{"no scheduler", 0, false, false, 1.9, 3.1},
		{"no split", 0, true, false, 1.5, 2.1},
		{"parts of 64 KiB", 64 << 10, true, false, 1, 1.08},
		{"parts of 8 KiB", 8 << 10, true, false, 1, 1.02},
		{"classes", 0, false, true, 1, 1.01},
	} {
		list := latencies(t, size, c.part, c.scheduled, c.classes)
		least, most := slices.Min(list), slices.Max(list)
		ratio := float64(most) / float64(least)
		t.Logf("%s: %v to %v, ratio %.3f", c.name, least, most, ratio)
		if ratio < c.low || ratio > c.high {
			t.Errorf("%s: maximum / minimum = %.3f, want %v to %v", c.name, ratio, c.low, c.high)
		}
		// 1 MiB with headers at 978 Mb/s; parts have round trips.
		if least < 8700*time.Microsecond || least > 10800*time.Microsecond {
			t.Errorf("%s: minimum %v", c.name, least)
		}
	}
}
