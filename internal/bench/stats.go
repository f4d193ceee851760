package bench

import (
	"time"

	"github.com/gorxe/gorxe/internal/cli"
)

// window counts the messages of a stream after the warm-up. The first batch after it starts the
// clock and does not count, so that messages and time correspond.
type window struct {
	warmup             time.Duration
	first, begin, last time.Time
	messages, all      uint64
}

func (w *window) add(now time.Time, n uint64) {
	w.all += n
	if w.first.IsZero() {
		w.first = now
	}
	switch {
	case now.Sub(w.first) < w.warmup:
	case w.begin.IsZero():
		w.begin, w.last = now, now
	default:
		w.messages += n
		w.last = now
	}
}

func (w *window) outcome() outcome {
	return outcome{Messages: w.messages, All: w.all, Elapsed: w.last.Sub(w.begin)}
}

// trips records round trips after the warm-up. A round trip begins when the previous one ends.
type trips struct {
	lat     *cli.Latency
	counted time.Time // end of the warm-up
	end     time.Time // of the measurement
	last    time.Time // end of the previous round trip
	all     uint64
}

func newTrips(s *spec) *trips {
	now := time.Now()
	return &trips{
		lat: cli.NewLatency(), counted: now.Add(s.Warmup),
		end: now.Add(s.Warmup + s.Duration), last: now,
	}
}

// done records a round trip that has just ended, and reports whether the time is up.
func (t *trips) done() bool {
	now := time.Now()
	if t.last.After(t.counted) {
		t.lat.Record(now.Sub(t.last))
	}
	t.last = now
	t.all++
	return now.After(t.end)
}

func (t *trips) outcome() outcome {
	return outcome{
		Messages: uint64(t.lat.Count()), All: t.all, Elapsed: t.last.Sub(t.counted),
		P50: t.lat.Percentile(50), P99: t.lat.Percentile(99),
	}
}
