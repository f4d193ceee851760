package clock

import "time"

// simulatedGap is the smallest difference between the clocks in a bubble. Outside, they are read
// within microseconds.
const simulatedGap = time.Minute

// Simulated reports whether the caller runs in a bubble of testing/synctest. The time of package
// time begins in the year 2000 there, and stands still until every goroutine of the bubble blocks,
// so a program that waits for it without blocking never ends.
func Simulated() bool {
	return time.Since(time.Unix(0, wall())).Abs() >= simulatedGap
}
