package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"
)

// warmup is how long a measurement runs before it counts, at most; short ones warm up for a quarter of their time.
const warmup = 60 * time.Millisecond

// bench is a run: two sides and what they measured.
type bench struct {
	a, b     *side // a sends
	figures  []figure
	rounds   int
	duration time.Duration
	mode     string
	softirqs softirqs

	datapath string
	samples  map[string]map[string][]sample // by figure and lane; one a round
	starved  int                            // samples that are not worth much
}

// sample is one measurement of one lane.
type sample struct {
	value       float64 // in the figure's unit
	p99         float64 // us; latencies only
	cpu         float64 // CPU seconds per GB of messages; bandwidths only
	retransmits uint64
	// elapsed is how long whoever counted did so. A receiver that the scheduler leaves out for most of the time finds everything at
	// once at the end, and believes in wonders.
	elapsed time.Duration
}

// rarely is in how many rounds a figure of rare events is measured once, and how many times longer. It is odd, so that lanes turn their order
// there, too.
const rarely = 5

// in tells whether a figure is measured in a round.
func (f *figure) in(round int) bool { return !f.rare || round%rarely == 0 }

// durationOf is how long a figure's measurements take.
func (b *bench) durationOf(f *figure) time.Duration {
	if f.rare {
		return rarely * b.duration
	}
	return b.duration
}

// steps is how many measurements there will be.
func (b *bench) steps() (n int) {
	for round := range b.rounds {
		for i := range b.figures {
			if b.figures[i].in(round) {
				n += len(b.figures[i].lanes)
			}
		}
	}
	return n
}

// run measures everything, round by round. step is called before each measurement.
func (b *bench) run(ctx context.Context, step func(figure, lane string)) error {
	b.samples = map[string]map[string][]sample{}
	for round := range b.rounds {
		for i := range b.figures {
			f := &b.figures[i]
			if !f.in(round) {
				continue
			}
			if b.samples[f.name] == nil {
				b.samples[f.name] = map[string][]sample{}
			}
			lanes := slices.Clone(f.lanes)
			if round%2 == 1 {
				slices.Reverse(lanes)
			}
			for _, l := range lanes {
				step(f.name, l.name)
				s, err := b.insist(ctx, f, &l, round)
				if err != nil {
					return fmt.Errorf("%s of %s: %w", f.name, l.name, err)
				}
				b.samples[f.name][l.name] = append(b.samples[f.name][l.name], s)
			}
		}
	}
	return nil
}

// tries is how often a measurement is made in which a side got too little CPU time.
const tries = 3

// errNothing: not one message arrived.
var errNothing = errors.New("nothing arrived: let other programs on this machine finish, or give it more time by --duration")

// insist repeats a measurement in which a side was starved, and in the end takes the longest.
func (b *bench) insist(ctx context.Context, f *figure, l *lane, round int) (best sample, err error) {
	for range tries {
		var s sample
		if s, err = b.measure(ctx, f, l, round); err != nil && !errors.Is(err, errNothing) {
			return s, err
		}
		if s.elapsed > best.elapsed {
			best = s
		}
		if best.elapsed >= b.durationOf(f)/2 {
			return best, nil
		}
	}
	if best.elapsed > 0 {
		b.starved++
		err = nil
	}
	return best, err
}

// measure lets both sides do one lane of one figure.
func (b *bench) measure(ctx context.Context, f *figure, l *lane, round int) (sample, error) {
	d := b.durationOf(f)
	s := spec{
		Kind: l.kind, Test: f.test, Size: f.size, MTU: f.mtu, Spin: f.spin, Loss: l.loss, Seed: uint64(round + 1), Mode: b.mode,
		Warmup: min(warmup, d/4), Duration: d,
	}
	active := s
	active.Active = true
	hb, err := b.b.call(ctx, request{Do: doPrepare, Spec: &s})
	if err != nil {
		return sample{}, err
	}
	ha, err := b.a.call(ctx, request{Do: doPrepare, Spec: &active})
	if err != nil {
		return sample{}, err
	}
	if l.kind == kindGorxe {
		b.datapath = ha.Hello.Datapath
	}
	softirq := b.softirqs.time()
	if _, err := b.b.call(ctx, request{Do: doStart, Peer: ha.Hello}); err != nil {
		return sample{}, err
	}
	oa, err := b.a.call(ctx, request{Do: doRun, Peer: hb.Hello})
	if err != nil {
		return sample{}, err
	}
	ob, err := b.b.call(ctx, request{Do: doStop})
	if err != nil {
		return sample{}, err
	}
	softirq = b.softirqs.time() - softirq
	if _, err := b.a.call(ctx, request{Do: doStop}); err != nil {
		return sample{}, err
	}
	return f.sample(&s, oa.Outcome, ob.Outcome, softirq)
}

// sample puts together what the two sides measured. One of them counted the messages.
func (f *figure) sample(s *spec, a, b *outcome, softirq time.Duration) (sample, error) {
	o := a
	if o.Messages == 0 {
		o = b
	}
	if o.Messages == 0 || o.Elapsed <= 0 {
		return sample{}, errNothing
	}
	r := sample{elapsed: o.Elapsed, retransmits: a.Retransmits + b.Retransmits}
	size := s.Size
	if s.Kind.bare() {
		size = s.payload()
	}
	switch f.unit {
	case unitLatency:
		r.value, r.p99 = float64(o.P50.Nanoseconds())/1e3, float64(o.P99.Nanoseconds())/1e3
	case unitRate:
		r.value = float64(o.Messages) / o.Elapsed.Seconds() / 1e6
	default:
		r.value = float64(o.Messages) * float64(size) * 8 / float64(o.Elapsed.Nanoseconds())
		r.cpu = (a.CPU + b.CPU + softirq).Seconds() / (float64(o.All) * float64(size) / 1e9)
	}
	return r, nil
}

// softirqs are the kernel's threads that do network work when it gets too much for the threads
// that caused it; their time belongs to the measurement.
type softirqs []string

func findSoftirqs() (list softirqs) {
	comms, _ := filepath.Glob("/proc/[0-9]*/comm") // the pattern is good
	for _, c := range comms {
		name, err := os.ReadFile(c)
		if err == nil && bytes.HasPrefix(name, []byte("ksoftirqd/")) {
			list = append(list, filepath.Join(filepath.Dir(c), "schedstat"))
		}
	}
	return list
}

// time is what they have run, by /proc/PID/schedstat; nothing where it cannot be read.
func (s softirqs) time() (sum time.Duration) {
	for _, path := range s {
		text, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		first, _, _ := bytes.Cut(text, []byte(" "))
		if ns, err := strconv.ParseInt(string(first), 10, 64); err == nil {
			sum += time.Duration(ns)
		}
	}
	return sum
}
