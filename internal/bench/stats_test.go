package bench

import (
	"testing"
	"time"
)

// Neither the warm-up nor the batch that starts the clock counts. All counts everything.
func TestWindow(t *testing.T) {
	w := window{warmup: 10 * time.Millisecond}
	start := time.Now()
	for _, ms := range []int{0, 5, 9, 10, 20, 30} {
		w.add(start.Add(time.Duration(ms)*time.Millisecond), 100)
	}
	o := w.outcome()
	if o.Messages != 200 || o.All != 600 || o.Elapsed != 20*time.Millisecond {
		t.Errorf("outcome() = %+v, want 200 messages of 600 in 20ms", o)
	}
}
