package up

import (
	"strings"
	"testing"

	"github.com/gorxe/gorxe/internal/cli"
)

func TestServiceList(t *testing.T) {
	for text, want := range map[string]string{"none": "none", "ping": "ping",
		"perf, rping": "perf,rping"} {
		var s serviceList
		if err := s.Set(text); err != nil || s.String() != want {
			t.Errorf("Set(%q) = %v, and the list is %v, want %s", text, err, &s, want)
		}
	}
	for text, want := range map[string]string{
		"ping,none": "write it alone", "none,none": "write it alone",
		"pong": "choose some of ping,perf,rping, or none", "": "choose some of",
	} {
		var s serviceList
		err := s.Set(text)
		if cli.Status(err) != cli.StatusUsage || !strings.Contains(err.Error(), want) {
			t.Errorf("Set(%q) = %v, want a usage error with %q", text, err, want)
		}
	}
}
