package sim

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/papers/kit"
	"github.com/gorxe/gorxe/papers/prefetch/model"
)

const digits = 3 // after the point, in JSON

// stretch is a run of neighbouring points that say the same.
type stretch struct {
	first, last model.Point
}

// stretches joins what has the same number in the paper and the same to its last printed digit in the model.
func stretches(points []model.Point) []stretch {
	var list []stretch
	for _, p := range points {
		if n := len(list); n > 0 && same(&list[n-1].first, &p) {
			list[n-1].last = p
			continue
		}
		list = append(list, stretch{p, p})
	}
	return list
}

func same(a, b *model.Point) bool {
	return a.Figure == b.Figure && a.Series == b.Series && stated(a) == stated(b) && number(a.Y) == number(b.Y)
}

func stated(p *model.Point) string {
	if p.Paper == nil {
		return ""
	}
	return fmt.Sprintf("%g", *p.Paper)
}

func number(y float64) string { return fmt.Sprintf("%.2f", y) }

func report(w io.Writer, c *model.Config, points []model.Point) error {
	figures := map[int]*model.Figure{}
	for _, f := range c.Figures() {
		figures[f.Number] = &f
	}
	t := cli.Table{Columns: []cli.Column{
		{Title: "figure"}, {Title: "series"}, {Title: "x", Align: cli.Right}, {Title: "of"}, {Title: "paper", Align: cli.Right},
		{Title: "ours", Align: cli.Right}, {Title: "unit"}, {Title: "off", Align: cli.Right},
	}}
	for _, s := range stretches(points) {
		f, x, off := figures[s.first.Figure], fmt.Sprint(s.first.X), ""
		if s.last.X != s.first.X {
			x += fmt.Sprintf(" to %d", s.last.X)
		}
		if s.first.Paper != nil {
			off = fmt.Sprintf("%+.1f%%", (s.first.Y / *s.first.Paper - 1)*100)
		}
		t.Row(f.Number, s.first.Series, x, f.X, stated(&s.first), number(s.first.Y), f.Y, off)
	}
	if err := t.Write(w); err != nil {
		return err
	}
	s, err := c.Summarize()
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "\nWithout prefetching %.2f of the peak are left when all caches are too small (paper: about half).\n", s.NoPrefetch/s.Peak)
	fmt.Fprintf(w, "The paper's abstract: a factor of %.2f in throughput (its figure 4: %.2f; ours %.2f); hints save %.1f%% of the latency (ours %.1f%%).\n",
		1+model.PaperGain, model.PaperPeak/model.PaperHalf, s.Gain(), model.PaperSaved*100, s.Saved()*100)
	fmt.Fprintf(w, "Of the peak, %.0f%% are reached with a window of %d (paper: all of it from %d on); window of the figures: %d.\n",
		model.Saturated*100, s.Saturates, model.PaperWindow, c.Window)
	fmt.Fprintln(w, "A model, not a measurement; what it assumes, and what else one could: --explain.")
	return nil
}

// explain prints what the model was told, and how far its results hang on that.
func explain(cmd *cobra.Command, c *model.Config) error {
	w := cmd.OutOrStdout()
	t := cli.Table{Columns: []cli.Column{{Title: "parameter"}, {Title: "value"}, {Title: "from"}, {Title: "why"}}}
	for _, a := range c.Assumptions() {
		from := "assumed"
		if a.Stated {
			from = "paper"
		}
		t.Row(a.Name, a.Value, from, a.Why)
	}
	if err := t.Write(w); err != nil {
		return err
	}
	fmt.Fprint(w, "\nOne assumption changed at a time (Mop/s; us):\n\n")
	t = cli.Table{Columns: []cli.Column{{Title: "assumption"}}}
	for _, title := range []string{"peak", "window 0", "window 7", "95% at", "small MPT, MTT", "hits", "misses", "hints"} {
		t.Columns = append(t.Columns, cli.Column{Title: title, Align: cli.Right})
	}
	t.Row("the paper", "70", "35", "70", "7", "40", "2.4", "2.9", "")
	variants := model.Variants()
	bar := kit.Bar(cmd.ErrOrStderr(), len(variants))
	defer func() { _ = bar.Exit() }()
	for _, v := range variants {
		if cli.Interrupted(cmd.Context()) {
			return cli.ErrInterrupted
		}
		_ = bar.Add(1)
		changed := *c
		v.Change(&changed)
		s, err := changed.Summarize()
		if err != nil {
			return err
		}
		t.Row(v.Name, rate(s.Peak), rate(s.NoPrefetch), rate(s.AtWindow), s.Saturates, rate(s.Memory),
			number(s.Hit), number(s.Missed), number(s.Hinted))
	}
	return t.Write(w)
}

func rate(y float64) string { return fmt.Sprintf("%.1f", y) }
