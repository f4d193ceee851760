package uverbs

import (
	"testing"
	"time"
)

func TestRunningThreads(t *testing.T) {
	for text, want := range map[string]int{"0.51 0.40 0.33 3/213 12345\n": 3, "1 2 3 17/18 9": 17,
		"": -1, "0.1 0.2 0.3": -1, "0.1 x/5": -1} {
		n, ok := runningThreads([]byte(text))
		if !ok {
			n = -1
		}
		if n != want {
			t.Errorf("runningThreads(%q) = %d, want %d", text, n, want)
		}
	}
}

// The number of running threads is read from the kernel, but not in each step.
func TestCrowd(t *testing.T) {
	c := newCrowd()
	defer c.close()
	if c.cpus < 1 || !c.sample() || c.running <= 0 {
		t.Fatalf("%v CPUs, %v running threads, want at least a part of this one", c.cpus, c.running)
	}
	c.next = time.Now().Add(time.Hour)
	if c.sample() {
		t.Error("sample() = true before it is time to")
	}
	c.running = c.cpus
	if c.dense() {
		t.Error("dense() = true with one thread for each CPU")
	}
	if c.running++; !c.dense() {
		t.Error("dense() = false with more threads than CPUs")
	}
}
