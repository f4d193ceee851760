package prefetch

import (
	"fmt"
	"io"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/papers/kit"
	"github.com/gorxe/gorxe/papers/prefetch/model"
)

// WriteTable implements kit.Report.
func (r *Report) WriteTable(w io.Writer) error {
	c := r.config
	if err := r.writePoints(w); err != nil {
		return err
	}
	s, err := c.Summarize()
	if err != nil {
		return err
	}
	fmt.Fprintf(w, `
Without prefetching the rate is %.2f of the peak when all caches are too small (paper: about half).
Throughput improves by a factor of %.2f (paper's abstract: %.2f; its figure 4: %.2f).
Hints reduce the latency by %.1f%% (paper's abstract: %.1f%%).
%.0f%% of the peak is reached with a window of %d (paper: all of it from %d on); the figures use %d.
These are results of a model, not measurements. --explain lists its assumptions and alternatives.
`, s.NoPrefetch/s.Peak, s.Gain(), 1+model.PaperGain, model.PaperPeak/model.PaperHalf,
		s.Saved()*100, model.PaperSaved*100,
		model.Saturated*100, s.Saturates, model.PaperWindow, c.Window)
	return nil
}

func (r *Report) writePoints(w io.Writer) error {
	figures := map[int]*model.Figure{}
	for _, f := range r.config.Figures() {
		figures[f.Number] = &f
	}
	t := cli.Table{Columns: []cli.Column{
		{Title: "figure"}, {Title: "series"}, {Title: "x", Align: cli.Right}, {Title: "of"},
		{Title: "paper", Align: cli.Right}, {Title: "model", Align: cli.Right}, {Title: "unit"},
		{Title: "difference", Align: cli.Right},
	}}
	for _, s := range segments(r.Points) {
		f, x, difference := figures[s.first.Figure], fmt.Sprint(s.first.X), ""
		if s.last.X != s.first.X {
			x += fmt.Sprintf(" to %d", s.last.X)
		}
		if s.first.Paper != nil {
			difference = fmt.Sprintf("%+.1f%%", (s.first.Y / *s.first.Paper - 1)*100)
		}
		t.Row(f.Number, s.first.Series, x, f.X, stated(&s.first), number(s.first.Y), f.Y,
			difference)
	}
	return t.Write(w)
}

// segment is a sequence of points with the same printed values.
type segment struct {
	first, last model.Point
}

func segments(points []model.Point) []segment {
	var list []segment
	for _, p := range points {
		if n := len(list); n > 0 && same(&list[n-1].first, &p) {
			list[n-1].last = p
			continue
		}
		list = append(list, segment{p, p})
	}
	return list
}

func same(a, b *model.Point) bool {
	return a.Figure == b.Figure && a.Series == b.Series &&
		stated(a) == stated(b) && number(a.Y) == number(b.Y)
}

func stated(p *model.Point) string {
	if p.Paper == nil {
		return ""
	}
	return fmt.Sprintf("%g", *p.Paper)
}

func number(y float64) string { return fmt.Sprintf("%.2f", y) }

// Panels implements kit.Report: one panel for each figure, the model as lines and the paper's
// numbers as rings.
func (r *Report) Panels() []kit.Panel {
	var panels []kit.Panel
	for _, f := range r.config.Figures() {
		c := &kit.Curves{Title: f.Title, X: f.X, Y: f.Y, ZeroY: true, LogX: f.LogX, PowersOf2: true}
		paper := kit.Line{Name: "stated in the paper", Style: kit.Rings}
		for _, series := range f.Series {
			l := kit.Line{Name: series, Style: kit.Markers}
			for _, p := range r.Points {
				if p.Figure != f.Number || p.Series != series {
					continue
				}
				l.Add(float64(p.X), p.Y)
				if p.Paper != nil {
					paper.Add(float64(p.X), *p.Paper)
				}
			}
			c.Lines = append(c.Lines, l)
		}
		c.Lines = append(c.Lines, paper)
		panels = append(panels, c)
	}
	return panels
}
