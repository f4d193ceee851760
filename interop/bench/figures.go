package main

// figure is something that both sides measure.
type figure struct {
	name    string
	op      string // as 'gorxe perf' names it; perftest's program is ib_ and this
	bytes   int
	latency bool
	trial   int // messages of the short run that finds out the pace
	unit    string
	cpu     cpuUnit
}

// cpuUnit is in what a figure's CPU time is given; the zero value says not at all.
type cpuUnit struct {
	name, unit string
	perMessage bool // microseconds a message, else seconds per 10^9 bytes of messages
}

// figures are in the order in which they are measured. A latency run spins on both sides, so its CPU time says nothing.
var figures = []figure{
	{name: "write_bw_64K", op: "write_bw", bytes: 64 << 10, trial: 50, unit: "MiB/s", cpu: cpuUnit{name: "cpu_write_bw_64K", unit: "s/GB"}},
	{name: "write_lat_8B", op: "write_lat", bytes: 8, latency: true, trial: 100, unit: "us"},
	{name: "write_rate_64B", op: "write_bw", bytes: 64, trial: 500, unit: "kmsg/s",
		cpu: cpuUnit{name: "cpu_write_rate_64B", unit: "us/msg", perMessage: true}},
}

// The bounds of a run's messages: a few queues of 128 (the default of both sides), clearly more than in the short run; and a
// run must end.
const (
	minMessages = 400
	maxMessages = 5_000_000
)

// messages is how many make a run last about that many seconds, at the pace of t.
func (f *figure) messages(t *trial, seconds float64) int {
	return max(minMessages, 4*f.trial, min(maxMessages, int(t.pace(f)*seconds)))
}

// pace is how many messages a second a run did.
func (t *trial) pace(f *figure) float64 {
	if f.latency {
		if t.value <= 0 {
			return 0
		}
		return 1e6 / (2 * t.value) // value is half of a round trip, and a message waits for its answer
	}
	return t.rate
}

// value takes the figure from a row of a tool's results.
func (f *figure) value(r *row) float64 {
	switch {
	case f.latency:
		return r.typical
	case f.unit == "kmsg/s":
		return r.mpps * 1e3
	}
	return r.mib
}
