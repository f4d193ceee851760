package clock

import (
	"time"

	"golang.org/x/sys/unix"
)

// simulatedTest is how long Simulated watches the clocks, ns.
const simulatedTest = 2_000

// Simulated reports whether the caller runs in a bubble of testing/synctest. The time of package
// time stands still there until every goroutine of the bubble blocks, so a program that waits for
// it without blocking never ends. Simulated takes about two microseconds.
func Simulated() bool {
	start := time.Now()
	for from := monotonic(); monotonic()-from < simulatedTest; {
	}
	return time.Since(start) == 0
}

// monotonic reads the kernel's clock, in nanoseconds.
func monotonic() int64 {
	var t unix.Timespec
	// The call cannot fail: the clock exists and t is valid.
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t)
	return t.Nano()
}
