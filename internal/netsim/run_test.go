package netsim

import (
	"context"
	"errors"
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
)

// small is a short scenario: two senders share 1 Gb/s.
func small() *Scenario {
	s := Sender{Op: roce.OpWrite, Size: 16 << 10, Depth: 4,
		Plan: loopback.Plan{Bandwidth: 10e9, Delay: 5 * time.Microsecond}}
	return &Scenario{
		Seed: 1, Senders: []Sender{s, s}, Frames: 256,
		Bottleneck: &loopback.Bottleneck{Bandwidth: 1e9, Queue: 1 << 20}, // for all packets
		Warmup:     5 * time.Millisecond, Time: 20 * time.Millisecond,
		Connect: roce.ConnectOptions{MTU: 1024},
	}
}

func run(t *testing.T, s *Scenario) Result {
	t.Helper()
	r, err := Run(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Two senders use the bottleneck, and it limits them.
func TestBottleneckLimitsFlows(t *testing.T) {
	s := small()
	r := run(t, s)
	// The payload per byte of the frames, and an operation of which a part was sent before.
	const most = 1024.0/(1024+58) + 0.01
	if share := r.Bits / 1e9; share < 0.8 || share > most {
		t.Errorf("the flows have %.3f of the link, want 0.8 to %.3f", share, most)
	}
	if len(r.Flows) != 2 || r.Flows[0].Sender != 0 || r.Flows[1].Sender != 1 {
		t.Errorf("Flows = %+v, want one for each of 2 senders", r.Flows)
	}
	if sum := r.Flows[0].Bits + r.Flows[1].Bits; math.Abs(sum-r.Bits) > 1 {
		t.Errorf("Bits = %.0f, want %.0f, the sum of the flows", r.Bits, sum)
	}
	if r.Bottleneck.Frames == 0 || r.Bottleneck.Longest < 1024 || r.Packets == 0 {
		t.Errorf("%+v: want a queue and packets", r)
	}
}

// All kinds of operations move data in the direction in which they should.
func TestOperations(t *testing.T) {
	for _, op := range []roce.Op{roce.OpWrite, roce.OpRead, roce.OpSend} {
		s := small()
		s.Senders = s.Senders[:1]
		s.Senders[0].Op = op
		s.Senders[0].Plan.Bandwidth = 2e9
		s.Bottleneck = nil
		r := run(t, s)
		if share := r.Bits / 2e9; share < 0.8 || share > 0.96 {
			t.Errorf("%v: %.3f of the link, want 0.8 to 0.96", op, share)
		}
	}
}

// A lossy link has lost and repeated packets, and less goodput.
func TestLoss(t *testing.T) {
	s := small()
	s.Senders = s.Senders[:1]
	s.Bottleneck = nil
	s.Senders[0].Plan = loopback.Plan{Bandwidth: 1e9, Delay: 50 * time.Microsecond}
	perfect := run(t, s)
	s.Senders[0].Plan.Loss = 0.1
	lossy := run(t, s)
	if perfect.Retransmits != 0 || lossy.Retransmits < 10 || lossy.Bits > perfect.Bits*0.95 ||
		lossy.Bits <= 0 {
		t.Errorf("without loss %.0f Mb/s and %d packets repeated, with 10 %% loss %.0f and %d",
			perfect.Bits/1e6, perfect.Retransmits, lossy.Bits/1e6, lossy.Retransmits)
	}
}

// The same scenario gives the same result, and another seed another one.
func TestRunRepeats(t *testing.T) {
	s := small()
	s.Sample = time.Millisecond
	for i := range s.Senders {
		s.Senders[i].Plan.Loss = 0.01
	}
	a, b := run(t, s), run(t, s)
	if !reflect.DeepEqual(a, b) {
		t.Errorf("two runs differ:\n%+v\n%+v", a, b)
	}
	s.Seed++
	if c := run(t, s); reflect.DeepEqual(a, c) {
		t.Error("another seed gives the same result")
	}
}

// Samples cover the warm-up and the measured time, and their mean is the result.
func TestSamples(t *testing.T) {
	s := small()
	s.Sample = time.Millisecond
	s.Senders[1].Start = 10 * time.Millisecond
	r := run(t, s)
	if len(r.Samples) != 25 {
		t.Fatalf("%d samples, want 25", len(r.Samples))
	}
	var sum [2]float64
	for i, p := range r.Samples {
		if p.At != time.Duration(i+1)*s.Sample || len(p.Bits) != 2 {
			t.Fatalf("sample %d is %+v, want 2 flows at %v", i, p, time.Duration(i+1)*s.Sample)
		}
		if len(p.Windows) != 2 || p.Windows[0] < 1 {
			t.Fatalf("sample %d has the windows %v, want 2", i, p.Windows)
		}
		if p.At <= s.Senders[1].Start && p.Bits[1] != 0 {
			t.Errorf("the second sender has sent at %v, before its start", p.At)
		}
		if p.At > s.Warmup {
			sum[0] += p.Bits[0] / 20
			sum[1] += p.Bits[1] / 20
		}
	}
	for i, f := range r.Flows {
		if math.Abs(sum[i]-f.Bits) > 1 || f.Bits == 0 {
			t.Errorf("flow %d: mean of the samples %.0f, result %.0f", i, sum[i], f.Bits)
		}
	}
}

func TestFairnessFigures(t *testing.T) {
	r := Result{Bits: 10, Flows: []Flow{{0, 1}, {0, 3}, {1, 6}}}
	if j := r.Jain(); math.Abs(j-100.0/(3*46)) > 1e-9 {
		t.Errorf("Jain() = %v, want %v", j, 100.0/(3*46))
	}
	if l := r.Least(); math.Abs(l-0.3) > 1e-9 {
		t.Errorf("Least() = %v, want 0.3", l)
	}
	if s := r.Share(0); math.Abs(s-0.4) > 1e-9 {
		t.Errorf("Share(0) = %v, want 0.4", s)
	}
	none := Result{Flows: []Flow{{0, 0}}}
	if none.Jain() != 0 || none.Least() != 0 || none.Share(0) != 0 {
		t.Error("without data Jain, Least and Share differ from 0")
	}
}

func TestScenarioIsChecked(t *testing.T) {
	for name, change := range map[string]func(*Scenario){
		"no senders":    func(s *Scenario) { s.Senders = nil },
		"too many":      func(s *Scenario) { s.Senders = make([]Sender, loopback.MaxPorts) },
		"operation":     func(s *Scenario) { s.Senders[1].Op = roce.OpFetchAdd },
		"size":          func(s *Scenario) { s.Senders[1].Size = 0 },
		"depth":         func(s *Scenario) { s.Senders[1].Depth = -1 },
		"memory":        func(s *Scenario) { s.Senders[0].Size, s.Senders[0].Depth = 1<<20, 1<<11 },
		"QPs":           func(s *Scenario) { s.Senders[0].QPs = -1 },
		"start":         func(s *Scenario) { s.Senders[0].Start = -1 },
		"no time":       func(s *Scenario) { s.Time = 0 },
		"negative time": func(s *Scenario) { s.Warmup = -1 },
		"sample":        func(s *Scenario) { s.Sample = -1 },
	} {
		s := small()
		change(s)
		if _, err := Run(t.Context(), s); !errors.Is(err, ErrScenario) {
			t.Errorf("%s: Run() = %v, want ErrScenario", name, err)
		}
	}
	s := small()
	s.Senders[0].Plan.Loss = 2
	if _, err := Run(t.Context(), s); !errors.Is(err, loopback.ErrPlan) {
		t.Errorf("Run() = %v, want ErrPlan", err)
	}
	s = small()
	s.Bottleneck.Queue = 0
	if _, err := Run(t.Context(), s); !errors.Is(err, loopback.ErrBottleneck) {
		t.Errorf("Run() = %v, want ErrBottleneck", err)
	}
}

func TestRunIsCanceled(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	cancel(why)
	if _, err := Run(ctx, small()); !errors.Is(err, why) {
		t.Errorf("Run() = %v, want %v", err, why)
	}
}
