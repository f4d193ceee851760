package clock

import "time"

// simulatedGap is the smallest difference between the clocks in a bubble. Outside, they are read
// within microseconds.
const simulatedGap = time.Minute

// Simulated reports whether the caller runs in a bubble of testing/synctest. The time of package
// time begins in the year 2000 there, and stands still until every goroutine of the bubble blocks,
// so a program that waits for it without blocking never ends. If the clock of the machine is within
// a minute of the bubble's, Simulated returns false.
func Simulated() bool {
	before := time.Now().UnixNano()
	now := wall()
	after := time.Now().UnixNano()
	// The process may have been stopped, or the clock set, between two of the readings.
	first, last := min(before, after), max(before, after)
	return now < first-int64(simulatedGap) || now > last+int64(simulatedGap)
}
