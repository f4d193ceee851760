package uverbs

import (
	"bytes"
	"os"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// crowd notices that more threads want to run than there are CPUs. A loop that spins then takes the
// time of programs, which poll as well: those of this device, or their peers on the same host.
type crowd struct {
	fd      int // of /proc/loadavg; -1: not open
	cpus    float64
	running float64 // moving average
	next    time.Time
}

const (
	crowdPeriod = 5 * time.Millisecond // between samples
	crowdWeight = 4                    // of the previous samples
)

func newCrowd() crowd {
	c := crowd{fd: -1, cpus: float64(onlineCPUs())}
	if fd, err := unix.Open("/proc/loadavg", unix.O_RDONLY|unix.O_CLOEXEC, 0); err == nil {
		c.fd = fd
	}
	return c
}

// onlineCPUs returns the number of CPUs of the host.
func onlineCPUs() int {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return runtime.NumCPU()
	}
	// A line for the sum, then one for each CPU.
	return max(bytes.Count(b, []byte("\ncpu")), 1)
}

// sample reads the number of running threads if it is time to. It returns false if nothing is new.
func (c *crowd) sample() bool {
	if c.fd < 0 {
		return false
	}
	now := time.Now()
	if now.Before(c.next) {
		return false
	}
	c.next = now.Add(crowdPeriod)
	var b [64]byte
	n, err := unix.Pread(c.fd, b[:], 0)
	if err != nil {
		return false
	}
	running, ok := runningThreads(b[:n])
	if ok {
		c.running += (float64(running) - c.running) / crowdWeight
	}
	return ok
}

// runningThreads returns the number before the slash in the text of /proc/loadavg.
func runningThreads(text []byte) (n int, ok bool) {
	text, _, ok = bytes.Cut(text, []byte{'/'})
	if !ok {
		return 0, false
	}
	n, err := strconv.Atoi(string(text[bytes.LastIndexByte(text, ' ')+1:]))
	return n, err == nil
}

// dense reports whether there are more running threads than CPUs.
func (c *crowd) dense() bool { return c.running > c.cpus }

func (c *crowd) close() {
	if c.fd >= 0 {
		_ = unix.Close(c.fd)
		c.fd = -1
	}
}
