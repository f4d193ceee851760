package flow

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// TestBoundOnLink compares bounds with packets of real devices in virtual time: a scheduler that
// splits messages. With the phases of the critical instant, the flow reaches 0.95 of its bound if
// one part is in flight.
func TestBoundOnLink(t *testing.T) {
	// The acknowledgment of a part: twice 5 us, 62 bytes, and 4 us for which the receiver delays
	// it.
	link := Link{Rate: 978e6, MTU: 4096, Overhead: 58, Gap: 14520 * time.Nanosecond}
	for seed := range uint64(12) {
		link.InFlight = 1 + max(0, int(seed)-8)
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 3))
			flows := randomFlows(r, 6, 0.6)
			for i := range flows {
				flows[i].Split, flows[i].Part = nil, 8<<10+r.IntN(32<<10)
				flows[i].Priority = i / 2
			}
			bounds, err := Bound(link, flows)
			if err != nil {
				t.Fatal(err)
			}
			own := r.IntN(len(flows))
			demands, err := demandsOf(&link, flows)
			if err != nil {
				t.Fatal(err)
			}
			end := int64(bounds[own].Offset+bounds[own].Bound) + 1
			arrive := critical(demands, own, int64(bounds[own].Offset), end)

			b := virtualBed(t)
			s := b.schedulers(SchedulerConfig{InFlight: link.InFlight})
			var paths []path
			for i, f := range flows {
				p := b.path(s, f.Size, SendConfig{Name: f.Name, Priority: f.Priority, Part: f.Part},
					ChannelConfig{})
				// Equals have arrived before the flow itself.
				if len(arrive[i]) > 0 {
					phase := time.Duration(arrive[i][0]) + time.Millisecond
					if i == own {
						phase += time.Nanosecond
					}
					tick := must(s[0].Timer(f.Name, max(f.Period, 1), phase))(t)
					left := len(arrive[i])
					must(s[0].Task(TaskConfig{Name: "write " + f.Name,
						Inputs: []Input{{Source: tick, Synchron: true}},
						Run: func(*Run) {
							if left--; left >= 0 {
								write(t, p.ch, 1, f.Size)
							}
						}}))(t)
				}
				paths = append(paths, p)
			}
			b.start(s)
			b.run(time.Duration(end) + 20*time.Millisecond)
			for i, p := range paths {
				st := p.task.Stats()
				t.Logf("%s: %d sent, %v, bound %v", flows[i].Name, st.Sent,
					time.Duration(st.MaxResponse), bounds[i].Bound)
				if st.MaxResponse > int64(bounds[i].Bound) {
					t.Errorf("%s took %v, bound %v", flows[i].Name, time.Duration(st.MaxResponse),
						bounds[i].Bound)
				}
			}
			if link.InFlight > 1 {
				return // the bound is not tight
			}
			got := float64(paths[own].task.Stats().MaxResponse)
			if want := 0.95 * float64(bounds[own].Bound); got < want {
				t.Errorf("%s took %v at the critical instant, bound %v", flows[own].Name,
					time.Duration(got), bounds[own].Bound)
			}
		})
	}
}
