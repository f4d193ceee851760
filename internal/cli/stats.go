package cli

import (
	"math"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// The histogram holds latencies from 1 ns to maxLatency with three significant digits in about 200
// KiB.
const (
	maxLatency       = 100 * time.Second
	latencyPrecision = 3
)

// Latency collects durations in constant memory. Minimum, maximum and mean are exact, percentiles
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
	// RecordValue fails only for values out of range, and the value is clamped.
	_ = l.h.RecordValue(int64(min(max(d, 1), maxLatency)))
}

// Count returns the number of samples.
func (l *Latency) Count() int64 { return l.n }

// Min returns the shortest sample, 0 if there is none.
func (l *Latency) Min() time.Duration { return l.min }

// Max returns the longest sample, 0 if there is none.
func (l *Latency) Max() time.Duration { return l.max }

// Mean returns the arithmetic mean, 0 if there is no sample.
func (l *Latency) Mean() time.Duration {
	if l.n == 0 {
		return 0
	}
	return time.Duration(l.sum / float64(l.n))
}

// StdDev returns the population standard deviation, 0 if there is no sample.
func (l *Latency) StdDev() time.Duration {
	if l.n == 0 {
		return 0
	}
	mean := l.sum / float64(l.n)
	return time.Duration(math.Sqrt(max(0, l.sq/float64(l.n)-mean*mean)))
}

// Percentile returns the value at or below which p percent of the samples lie. The result is
// clamped to [Min, Max], because the bounds of the histogram's buckets may lie outside.
func (l *Latency) Percentile(p float64) time.Duration {
	if l.n == 0 {
		return 0
	}
	return min(max(time.Duration(l.h.ValueAtPercentile(p)), l.min), l.max)
}

// Micros returns d in microseconds, rounded to nanoseconds.
func Micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }

// Gbps returns the rate of n bytes in d, in 10^9 bits per second; 0 if d is not positive.
func Gbps(n int64, d time.Duration) float64 {
	if d <= 0 {
		return 0
	}
	return float64(n) * 8 / float64(d.Nanoseconds())
}

// Round rounds f to a number of digits after the decimal point.
func Round(f float64, digits int) float64 {
	p := math.Pow10(digits)
	return math.Round(f*p) / p
}
