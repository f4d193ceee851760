package kit

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"math"
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

var series = []Series{
	{
		Name: "a", Unit: "us", Baseline: "slidingwindow", Values: []float64{1.8, 2, 2.2},
		Base: []float64{4, 4, 4}, Paper: Says(0.073),
	},
	{
		Name: "b", Unit: "%", Baseline: "slidingwindow", Values: []float64{88},
		Base: []float64{0}, PaperValue: Says(88), PaperBase: Says(0),
	},
}

// The results have the keys of "gorxe bench --json", and paper in every element: null without a
// figure of the paper.
func TestResultsJSON(t *testing.T) {
	text, err := json.Marshal(Results(series))
	if err != nil {
		t.Fatal(err)
	}
	var list []map[string]any
	if err := json.Unmarshal(text, &list); err != nil {
		t.Fatal(err)
	}
	keys := []string{"name", "value", "unit", "baseline", "baseline_value", "ratio", "spread",
		"paper"}
	for _, e := range list {
		for _, key := range keys {
			if _, ok := e[key]; !ok {
				t.Errorf("%v has no key %s", e, key)
			}
		}
	}
	if a := list[0]; a["value"] != 2.0 || a["ratio"] != 0.5 || a["spread"] != 0.2 ||
		a["paper"] != 0.073 {
		t.Errorf("result a is %v", a)
	}
	if b := list[1]; b["paper"] != nil || b["ratio"] != 0.0 || b["paper_value"] != 88.0 {
		t.Errorf("result b is %v", b)
	}
	if text, _ := json.Marshal(Results(nil)); string(text) != "[]" {
		t.Errorf("JSON of no results is %s, want []", text)
	}
}

func TestWriteTable(t *testing.T) {
	var out bytes.Buffer
	if err := WriteTable(&out, "statusbyte", Results(series)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"0.073", "88 to 0", "0.500"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, out.String())
		}
	}
}

// The sides alternate, and change their order every other round.
func TestRounds(t *testing.T) {
	var got strings.Builder
	step := func(name string) Step {
		return Step{Experiment: "x", Side: name, Run: func(context.Context, int) error {
			got.WriteString(name)
			return nil
		}}
	}
	err := Rounds(t.Context(), 3, [][]Step{{step("a"), step("b")}, {step("c")}}, io.Discard)
	if err != nil || got.String() != "abcbacabc" {
		t.Errorf("Rounds() = %v with order %q, want abcbacabc", err, got.String())
	}
}

var panels = []Panel{
	&Bars{Title: "bars", X: "us", Bars: []Bar{
		{Label: "a", Values: []float64{1, 2}, Own: true}, {Label: "none"},
	}},
	&Curves{Title: "curves", LogX: true, Lines: []Line{
		{Name: "line", X: []float64{0, 1, 2}, Y: []float64{1, 2, 3}},
		{Name: "dots", X: []float64{1}, Y: []float64{1}, Style: Dots},
		{Name: "rings", X: []float64{1, 2}, Y: []float64{1, 2}, Style: Rings},
	}},
	&Curves{Title: "empty"},
}

// The extension of a plot's name selects the format. Without one there are two files.
func TestSavePlots(t *testing.T) {
	base := filepath.Join(t.TempDir(), "plot")
	files, err := SavePlots(base, panels)
	if err != nil || len(files) != 2 {
		t.Fatalf("SavePlots() = %v, %v, want two files", files, err)
	}
	for i, magic := range []string{"<?xml", "\x89PNG"} {
		if text, err := os.ReadFile(files[i]); err != nil || !bytes.HasPrefix(text, []byte(magic)) {
			t.Errorf("%s does not begin with %q: %v", files[i], magic, err)
		}
	}
	if files, err := SavePlots(base+".png", panels); err != nil || len(files) != 1 {
		t.Errorf("SavePlots() = %v, %v, want one file", files, err)
	}
}

// The texts of a legend start to the right of their symbols, below the axis, each on a separate
// line, so that they overlap nothing with any font.
func TestLegendPosition(t *testing.T) {
	name := filepath.Join(t.TempDir(), "plot.svg")
	if _, err := SavePlots(name, panels[1:2]); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	type label struct {
		X     float64 `xml:"x,attr"`
		Y     float64 `xml:"y,attr"`
		Width float64 `xml:"textLength,attr"`
		Text  string  `xml:",chardata"`
	}
	var list []label
	lowest := math.Inf(-1) // y grows downward
	dec := xml.NewDecoder(bytes.NewReader(text))
	for {
		token, err := dec.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		start, ok := token.(xml.StartElement)
		if !ok || start.Name.Local != "text" {
			continue
		}
		var l label
		if err := dec.DecodeElement(&l, &start); err != nil {
			t.Fatal(err)
		}
		if l.Width <= 0 {
			t.Errorf("text %q has width %v, want a fixed one", l.Text, l.Width)
		}
		switch l.Text {
		case "line", "dots", "rings":
			list = append(list, l)
		default:
			lowest = max(lowest, l.Y)
		}
	}
	if len(list) != 3 {
		t.Fatalf("found %d legend entries, want 3", len(list))
	}
	for i, l := range list {
		if l.X != list[0].X {
			t.Errorf("entry %q starts at x=%v, want %v", l.Text, l.X, list[0].X)
		}
		above := list[max(i-1, 0)].Y
		if i == 0 {
			above = lowest
		}
		if l.Y < above+legendSize {
			t.Errorf("entry %q is at y=%v, too close to the text at y=%v", l.Text, l.Y, above)
		}
	}
}
