package prefetch

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/gorxe/gorxe/papers/kit"
	"github.com/gorxe/gorxe/papers/prefetch/model"
)

// The report has a panel for each figure, with the model's series and the paper's numbers.
func TestReport(t *testing.T) {
	c := model.DefaultConfig()
	for k := range model.Kinds {
		c.Cache[k] = 256
	}
	c.MaxQPs = 1024
	r, err := Run(t.Context(), &c, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	figures, panels := c.Figures(), r.Panels()
	if len(panels) != len(figures) {
		t.Fatalf("got %d panels, want %d", len(panels), len(figures))
	}
	for i, f := range figures {
		lines := panels[i].(*kit.Curves).Lines
		if want := len(f.Series) + 1; len(lines) != want || lines[want-1].Style != kit.Rings {
			t.Errorf("figure %d has %d lines, want %d, the last one as rings", f.Number, len(lines),
				want)
		}
	}
	var b bytes.Buffer
	if err := r.WriteTable(&b); err != nil {
		t.Fatal(err)
	}
	// Points with the same values share a line.
	if !strings.Contains(b.String(), "512 to 2048") {
		t.Errorf("no line for several points in\n%s", b.String())
	}
}
