package main

// figure is something that both sides measure.
type figure struct {
	name    string
	op      string // as 'gorxe perf' names it; perftest's program is ib_ plus this
	bytes   int
	latency bool
	trial   int // messages of the short run that measures the pace
	unit    string
	cpu     cpuUnit
}

// cpuUnit is the unit of a figure's CPU time; the zero value omits it.
type cpuUnit struct {
	name, unit string
	perMessage bool // microseconds per message; otherwise seconds per 10^9 bytes
}

// figures are listed in the order of measurement. A latency run spins on both sides, so its CPU
// time means nothing.
var figures = []figure{
	{name: "write_bw_64K", op: "write_bw", bytes: 64 << 10, trial: 50, unit: "MiB/s",
		cpu: cpuUnit{name: "cpu_write_bw_64K", unit: "s/GB"}},
	{name: "write_lat_8B", op: "write_lat", bytes: 8, latency: true, trial: 100, unit: "us"},
	{name: "write_rate_64B", op: "write_bw", bytes: 64, trial: 500, unit: "kmsg/s",
		cpu: cpuUnit{name: "cpu_write_rate_64B", unit: "us/msg", perMessage: true}},
}

// Limits of a run's messages: several queues of 128 (the default of both sides), clearly more than
// in the short run, and bounded.
const (
	minMessages = 400
	maxMessages = 5_000_000
)

// messages returns how many messages make a run last about that many seconds at the pace of t.
func (f *figure) messages(t *trial, seconds float64) int {
	return max(minMessages, 4*f.trial, min(maxMessages, int(t.pace(f)*seconds)))
}

// pace returns the messages per second of a run.
func (t *trial) pace(f *figure) float64 {
	if f.latency {
		if t.value <= 0 {
			return 0
		}
		// value is half a round trip, and each message waits for its answer
		return 1e6 / (2 * t.value)
	}
	return t.rate
}

// value returns the figure from a row of a tool's results.
func (f *figure) value(r *row) float64 {
	switch {
	case f.latency:
		return r.typical
	case f.unit == "kmsg/s":
		return r.mpps * 1e3
	}
	return r.mib
}
