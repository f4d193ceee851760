package roce

import (
	"testing"
	"time"
)

// deadline limits what a test waits for.
const deadline = 10 * time.Second

// eventually waits until cond returns true, and fails the test after the deadline. state describes
// what is awaited.
func eventually(t testing.TB, state string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(deadline); !cond(); time.Sleep(100 * time.Microsecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within %v", state, deadline)
		}
	}
}
