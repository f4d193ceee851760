package kit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/xdp"
)

// Scripts rely on the keys, and find them at the top level of whatever has a Row in it.
func TestRow(t *testing.T) {
	text, err := json.Marshal(struct {
		Row
		More int `json:"more"`
	}{Row: Compare("x", "us", "y", []float64{3, 1, 2}, []float64{1, 2, 4})})
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"name":"x","value":2,"unit":"us","baseline":"y","baseline_value":2,"ratio":null,"spread":5,"more":0}`
	if string(text) != want {
		t.Errorf("%s; want %s", text, want)
	}
	if r := Compare("x", "us", "y", []float64{1}, []float64{0}); *r.Ratio != 0 || r.Spread != 0 {
		t.Errorf("without a baseline: %+v", r)
	}
}

func TestKnown(t *testing.T) {
	if err := Known("figure", []string{"a"}, []string{"a", "b"}); err != nil {
		t.Error(err)
	}
	if err := Known("figure", []string{"a", "c"}, []string{"a", "b"}); cli.Status(err) != cli.StatusUsage {
		t.Errorf("%v; want a usage error", err)
	}
}

func TestNoVeth(t *testing.T) {
	if !NoVeth(fmt.Errorf("open: %w", xdp.ErrUnsupported)) || NoVeth(nil) || NoVeth(fmt.Errorf("else")) {
		t.Error("NoVeth")
	}
}

func TestWarnStarved(t *testing.T) {
	var b bytes.Buffer
	if WarnStarved(&b, 0, 5, "a side"); b.Len() != 0 {
		t.Errorf("%q", b.String())
	}
	WarnStarved(&b, 1, 5, "a side")
	const want = "In 1 of 5 measurements a side got too little CPU time: other programs are at work here, so do not trust these figures.\n"
	if b.String() != want {
		t.Errorf("%q", b.String())
	}
}
