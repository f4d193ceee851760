package guest

import (
	"testing"
	"time"
)

// 7 ticks of user and 5 of system time, with a difficult name.
func TestParseCPUTime(t *testing.T) {
	got, err := parseCPUTime([]byte("42 (a) b) (c) S 1 42 42 0 -1 4194304 100 200 0 0 7 5 99 99 20 0 3 0 1"))
	if want := 120 * time.Millisecond; err != nil || got != want {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
	for _, bad := range []string{"", "42 (x) S 1 2",
		"42 (x) S 1 42 42 0 -1 4194304 100 200 0 0 seven 5 99"} {
		if _, err := parseCPUTime([]byte(bad)); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}
