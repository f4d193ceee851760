package uverbs

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/roce"
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

// If a device cannot be created, its descriptors are closed.
func TestNewDeviceFails(t *testing.T) {
	bed, err := testbed.New(testbed.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := bed.Close(); err != nil {
		t.Fatal(err)
	}
	descriptors := func() int {
		list, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	const tries = 40
	before := descriptors()
	for range tries {
		if _, err := NewDevice(bed.Dev[0], Config{Name: "rxe0"}); !errors.Is(err, roce.ErrClosed) {
			t.Fatalf("NewDevice() = %v, want ErrClosed", err)
		}
	}
	if n := descriptors() - before; n >= tries/2 {
		t.Errorf("%d descriptors were left open after %d attempts", n, tries)
	}
}
