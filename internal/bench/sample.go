package bench

import (
	"time"

	"github.com/gorxe/gorxe/papers/kit"
)

// sample is the result of one measurement.
type sample struct {
	value       float64 // in the unit of the figure
	p99         float64 // 99th percentile in us; only of latencies
	cpu         float64 // CPU seconds per GB of messages; only of bandwidths
	retransmits uint64
	// elapsed is the duration of the counting side's measurement. It is short if that side did
	// not run most of the time: then many messages arrive at once at the end, and the value is
	// too high.
	elapsed time.Duration
}

// sample combines the outcomes of the two sides. One of them has counted the messages.
func (f *figure) sample(s *spec, a, b *outcome, softirq time.Duration) (sample, error) {
	o := a
	if o.Messages == 0 {
		o = b
	}
	if o.Messages == 0 || o.Elapsed <= 0 {
		return sample{}, kit.ErrIdle
	}
	r := sample{elapsed: o.Elapsed, retransmits: a.Retransmits + b.Retransmits}
	size := s.Size
	if s.Kind.packets() {
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
