package paper

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCV(t *testing.T) {
	for _, c := range []struct {
		v    []float64
		want float64
	}{{nil, 0}, {[]float64{5, 5, 5}, 0}, {[]float64{0, 0}, 0}, {[]float64{0, 2}, 1}} {
		if got := CV(c.v); got != c.want {
			t.Errorf("CV(%v) = %v, want %v", c.v, got, c.want)
		}
	}
}

var rows = []Row{
	{Name: "a", Unit: "us", Baseline: "slidingwindow", Values: []float64{1.8, 2, 2.2}, Base: []float64{4, 4, 4}, Paper: Says(0.073)},
	{Name: "b", Unit: "%", Baseline: "slidingwindow", Values: []float64{88}, Base: []float64{0}, PaperValue: Says(88), PaperBase: Says(0)},
}

// Scripts find the shape of "gorxe bench --json", and paper in every element: null where it states nothing.
func TestJSON(t *testing.T) {
	text, err := json.Marshal(Results(rows))
	if err != nil {
		t.Fatal(err)
	}
	var list []map[string]any
	if err := json.Unmarshal(text, &list); err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		for _, key := range []string{"name", "value", "unit", "baseline", "baseline_value", "ratio", "spread", "paper"} {
			if _, ok := e[key]; !ok {
				t.Errorf("%v has no %s", e, key)
			}
		}
	}
	if a := list[0]; a["value"] != 2.0 || a["ratio"] != 0.5 || a["spread"] != 0.2 || a["paper"] != 0.073 {
		t.Errorf("%v", a)
	}
	if b := list[1]; b["paper"] != nil || b["ratio"] != 0.0 || b["paper_value"] != 88.0 {
		t.Errorf("%v", b)
	}
	if text, _ := json.Marshal(Results(nil)); string(text) != "[]" {
		t.Errorf("no rows are %s", text)
	}
}

func TestTable(t *testing.T) {
	var out bytes.Buffer
	if err := WriteTable(&out, "statusbyte", rows); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"0.073", "88 to 0", "0.500"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, out.String())
		}
	}
}

// The sides take turns, and swap them every other round.
func TestRounds(t *testing.T) {
	var got strings.Builder
	step := func(name string) Step {
		return Step{Experiment: "x", Side: name, Run: func(context.Context, int) error { got.WriteString(name); return nil }}
	}
	err := Rounds(t.Context(), 3, [][]Step{{step("a"), step("b")}, {step("c")}}, io.Discard)
	if err != nil || got.String() != "abcbacabc" {
		t.Errorf("%q, %v", got.String(), err)
	}
}

// A plot's name says its format; without one there are both.
func TestSavePlots(t *testing.T) {
	panels := []Panel{
		&Bars{Title: "bars", X: "us", Bars: []Bar{{Label: "a", Values: []float64{1, 2}, Own: true}, {Label: "none"}}},
		&Curves{Title: "curves", LogX: true, Lines: []Line{{Name: "a", X: []float64{0, 1, 2}, Y: []float64{1, 2, 3}}, {Name: "b", X: []float64{1}, Y: []float64{1}, Dots: true}}},
		&Curves{Title: "empty"},
	}
	base := filepath.Join(t.TempDir(), "plot")
	files, err := SavePlots(base, panels)
	if err != nil || len(files) != 2 {
		t.Fatal(files, err)
	}
	for i, magic := range []string{"<?xml", "\x89PNG"} {
		if text, err := os.ReadFile(files[i]); err != nil || !bytes.HasPrefix(text, []byte(magic)) {
			t.Errorf("%s: %v", files[i], err)
		}
	}
	if files, err := SavePlots(base+".png", panels); err != nil || len(files) != 1 {
		t.Error(files, err)
	}
}
