package prefetch

import (
	"context"
	"fmt"
	"io"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/papers/kit"
	"github.com/gorxe/gorxe/papers/prefetch/model"
)

// Explain writes the assumptions of the model, and the results with each of them changed.
func Explain(ctx context.Context, c *model.Config, w, stderr io.Writer) error {
	t := cli.Table{Columns: []cli.Column{
		{Title: "parameter"}, {Title: "value"}, {Title: "from"}, {Title: "reason"},
	}}
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
	fmt.Fprint(w, "\nResults with one assumption changed (Mop/s; us):\n\n")
	return writeVariants(ctx, c, w, stderr)
}

func writeVariants(ctx context.Context, c *model.Config, w, stderr io.Writer) error {
	t := cli.Table{Columns: []cli.Column{{Title: "assumption"}}}
	for _, title := range []string{
		"peak", "window 0", "window 7", "95% at", "small MPT, MTT", "hits", "misses", "hints",
	} {
		t.Columns = append(t.Columns, cli.Column{Title: title, Align: cli.Right})
	}
	t.Row("the paper", "70", "35", "70", "7", "40", "2.4", "2.9", "")
	variants := model.Variants()
	bar := kit.ProgressBar(stderr, len(variants))
	defer func() { _ = bar.Exit() }()
	rate := func(y float64) string { return fmt.Sprintf("%.1f", y) }
	for _, v := range variants {
		if ctx.Err() != nil {
			return kit.Ended(ctx)
		}
		_ = bar.Add(1)
		changed := *c
		v.Change(&changed)
		s, err := changed.Summarize()
		if err != nil {
			return err
		}
		t.Row(v.Name, rate(s.Peak), rate(s.NoPrefetch), rate(s.AtWindow), s.Saturates,
			rate(s.Memory),
			number(s.Hit), number(s.Missed), number(s.Hinted))
	}
	return t.Write(w)
}
