package cli

import (
	"strings"
	"testing"
	"time"
)

// A Log writes a burst of lines, then one per second, and says how many it left out.
func TestLog(t *testing.T) {
	var out strings.Builder
	l := NewLog(&out)
	now := time.Now()
	lines := func() []string {
		defer out.Reset()
		return strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	}
	for i := range 1000 {
		l.printf(now, "line %d", i)
	}
	if got := lines(); len(got) != logBurst || got[0] != "line 0" || got[9] != "line 9" {
		t.Errorf("1000 lines at once became %q, want the first %d", got, logBurst)
	}
	now = now.Add(logInterval)
	for range 5 {
		l.printf(now, "later")
	}
	if got := lines(); strings.Join(got, "|") != "(990 similar messages left out)|later" {
		t.Errorf("after 1 s: %q", got)
	}
	l.Flush()
	if got := lines(); strings.Join(got, "|") != "(4 similar messages left out)" {
		t.Errorf("Flush() wrote %q", got)
	}
	l.Flush()
	now = now.Add(time.Hour)
	for range 2 * logBurst {
		l.printf(now, "x")
	}
	if got := lines(); len(got) != logBurst {
		t.Errorf("after an hour %d lines at once, want %d", len(got), logBurst)
	}
}
