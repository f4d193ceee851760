package cli

import (
	"math"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Latencies are recorded from 1 ns to maxLatency with three significant digits:
// a histogram of about 200 KiB, whatever the number of samples.
const (
	maxLatency       = 100 * time.Second
	latencyPrecision = 3
)

// Latency collects durations. Minimum, maximum and mean are exact, percentiles
// within 0.1 %. It is not safe for concurrent use.
type Latency struct {
	h        *hdrhistogram.Histogram
	min, max time.Duration
	sum, sq  float64 // of nanoseconds
	n        int64
}

// NewLatency returns an empty collection.
func NewLatency() *Latency {
	return &Latency{h: hdrhistogram.New(1, int64(maxLatency), latencyPrecision)}
}

// Record adds one sample. It does not allocate.
func (l *Latency) Record(d time.Duration) {
	if l.n == 0 || d < l.min {
		l.min = d
	}
	if d > l.max {
		l.max = d
	}
	l.n++
	l.sum += float64(d)
	l.sq += float64(d) * float64(d)
	// Out of range cannot happen after clamping, so there is no error to keep.
	_ = l.h.RecordValue(int64(min(max(d, 1), maxLatency)))
}

// Count is the number of samples.
func (l *Latency) Count() int64 { return l.n }

// Min is the shortest sample, 0 if there is none.
func (l *Latency) Min() time.Duration { return l.min }

// Max is the longest sample, 0 if there is none.
func (l *Latency) Max() time.Duration { return l.max }

// Mean is the arithmetic mean, 0 if there is no sample.
func (l *Latency) Mean() time.Duration {
	if l.n == 0 {
		return 0
	}
	return time.Duration(l.sum / float64(l.n))
}

// StdDev is the standard deviation of the samples (of the whole population).
func (l *Latency) StdDev() time.Duration {
	if l.n == 0 {
		return 0
	}
	mean := l.sum / float64(l.n)
	return time.Duration(math.Sqrt(max(0, l.sq/float64(l.n)-mean*mean)))
}

// Percentile is the value at or below which p percent of the samples lie. It
// is kept within [Min, Max], which a histogram's bucket edges may overstep.
func (l *Latency) Percentile(p float64) time.Duration {
	if l.n == 0 {
		return 0
	}
	return min(max(time.Duration(l.h.ValueAtPercentile(p)), l.min), l.max)
}

// Micros is d in microseconds, rounded to nanoseconds.
func Micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }

// Gbps is the rate of n bytes in d, in 10^9 bits per second; 0 if d is not positive.
func Gbps(n int64, d time.Duration) float64 {
	if d <= 0 {
		return 0
	}
	return float64(n) * 8 / float64(d.Nanoseconds())
}

// Round rounds f to so many digits after the point, for output that people read.
func Round(f float64, digits int) float64 {
	p := math.Pow10(digits)
	return math.Round(f*p) / p
}
