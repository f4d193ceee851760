package kit

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/gorxe/gorxe/internal/cli"
)

// Scripts rely on these keys, and on finding them at the top level of a struct that embeds Row.
func TestRow(t *testing.T) {
	text, err := json.Marshal(struct {
		Row
		More int `json:"more"`
	}{Row: Compare("x", "us", "y", []float64{3, 1, 2}, []float64{1, 2, 4})})
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"name":"x","value":2,"unit":"us","baseline":"y","baseline_value":2,"ratio":null,` +
		`"spread":5,"more":0}`
	if string(text) != want {
		t.Errorf("JSON is %s, want %s", text, want)
	}
	if r := Compare("x", "us", "y", []float64{1}, []float64{0}); *r.Ratio != 0 || r.Spread != 0 {
		t.Errorf("Compare() without a baseline = %+v, want ratio and spread 0", r)
	}
}

func TestKnown(t *testing.T) {
	if err := Known("figure", []string{"a"}, []string{"a", "b"}); err != nil {
		t.Error(err)
	}
	err := Known("figure", []string{"a", "c"}, []string{"a", "b"})
	if cli.Status(err) != cli.StatusUsage {
		t.Errorf("Known() = %v for an unknown name, want a usage error", err)
	}
}

func TestWarnStarved(t *testing.T) {
	var b bytes.Buffer
	if WarnStarved(&b, 0, 5, "a side"); b.Len() != 0 {
		t.Errorf("WarnStarved() wrote %q without a starved measurement", b.String())
	}
	WarnStarved(&b, 1, 5, "a side")
	const want = "In 1 of 5 measurements a side got too little CPU time because other programs are " +
		"running: these figures are unreliable.\n"
	if b.String() != want {
		t.Errorf("WarnStarved() wrote %q, want %q", b.String(), want)
	}
}
