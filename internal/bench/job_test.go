package bench

import (
	"testing"
	"time"
)

// The warm-up does not count, nor does the batch that starts the clock; "all" counts everything.
func TestWindow(t *testing.T) {
	w := window{warmup: 10 * time.Millisecond}
	start := time.Now()
	for _, ms := range []int{0, 5, 9, 10, 20, 30} {
		w.add(start.Add(time.Duration(ms)*time.Millisecond), 100)
	}
	o := w.outcome()
	if o.Messages != 200 || o.All != 600 || o.Elapsed != 20*time.Millisecond {
		t.Errorf("%+v; want 200 messages of 600 in 20ms", o)
	}
}
