package run

import (
	"strings"
	"testing"
	"testing/iotest"
)

// A text is found wherever the pieces that are read begin.
func TestContains(t *testing.T) {
	const text = "infiniband_verbs"
	for _, at := range []int{0, 1, 64<<10 - len(text), 64<<10 - 1, 64 << 10, 200_000} {
		with := strings.Repeat("i", at) + text + "i"
		for name, s := range map[string]string{"with": with, "without": with[:at+len(text)-1]} {
			got, err := contains(iotest.HalfReader(strings.NewReader(s)), text)
			if want := name == "with"; err != nil || got != want {
				t.Errorf("%s the text at %d: contains() = %v, %v, want %v", name, at, got, err, want)
			}
		}
	}
	if _, err := contains(iotest.ErrReader(iotest.ErrTimeout), text); err == nil {
		t.Error("contains() of a reader that fails = nil error")
	}
}
