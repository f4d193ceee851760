package scale

import (
	"fmt"
	"io"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/stat"
	"github.com/gorxe/gorxe/papers/kit"
)

// Result is one lane against the one with 64 QPs or MRs.
type Result struct {
	kit.Row
	Link     string `json:"link"`
	QPs      int    `json:"qps"`
	MRs      int    `json:"mrs"`
	Order    string `json:"order"`
	Prefetch int    `json:"prefetch"` // window; 0: off

	Misses *float64 `json:"llc_misses_per_message,omitempty"` // where the processor tells
}

func rateOf(s *sample) float64 { return s.rate }

func (b *bench) result(l *lane) Result {
	base := l.base()
	v, against := kit.Column(b.samples[*l], rateOf), kit.Column(b.samples[base], rateOf)
	r := Result{
		Row:  kit.Compare(l.name, unitRate, l.baseline(), v, against),
		Link: b.w.link, QPs: l.qps, MRs: l.mrs, Order: string(l.order), Prefetch: l.prefetch,
	}
	if m := stat.Median(kit.Column(b.samples[*l], func(s *sample) float64 { return s.misses })); m >= 0 {
		m = kit.Round(m)
		r.Misses = &m
	}
	return r
}

func (b *bench) results() []Result {
	list := []Result{} // an empty array in JSON, never null
	for i := range b.lanes {
		list = append(list, b.result(&b.lanes[i]))
	}
	return list
}

func writeTable(w io.Writer, list []Result) error {
	t := cli.Table{Columns: []cli.Column{
		{Title: "figure"}, {Title: "QPs", Align: cli.Right}, {Title: "MRs", Align: cli.Right}, {Title: "order"}, {Title: "window", Align: cli.Right},
		{Title: unitRate, Align: cli.Right}, {Title: "against"}, {Title: "has", Align: cli.Right}, {Title: "ratio", Align: cli.Right},
		{Title: "spread", Align: cli.Right}, {Title: "misses", Align: cli.Right},
	}}
	for i := range list {
		r := &list[i]
		misses := "?"
		if r.Misses != nil {
			misses = fmt.Sprintf("%.2f", *r.Misses)
		}
		window := "off"
		if r.Prefetch > 0 {
			window = fmt.Sprint(r.Prefetch)
		}
		t.Row(r.Name, r.QPs, r.MRs, r.Order, window, fmt.Sprintf("%.3f", r.Value), r.Baseline, fmt.Sprintf("%.3f", r.BaselineValue),
			r.RatioText(2), fmt.Sprintf("%.0f%%", r.Spread*100), misses)
	}
	return t.Write(w)
}

func (b *bench) write(w io.Writer, list []Result, cpus []int) error {
	fmt.Fprintf(w, "%s link (%s), %s a message, bursts of %d; CPUs %d and %d; medians of %s of %v\n",
		b.w.link, b.w.datapath, cli.FormatSize(msgSize), b.burst, cpus[0], cpus[1], cli.Count(b.rounds, "round"), b.duration)
	fmt.Fprintf(w, "%s and %s a device, made and connected in %v%s\n\n",
		cli.Count(len(b.w.a.qps), "QP"), cli.Count(len(b.w.a.mrs), "MR"), b.w.made.Round(1e6), b.w.size)
	if err := writeTable(w, list); err != nil {
		return err
	}
	m, err := newMissCounter()
	m.close()
	fmt.Fprintf(w, notes, kit.AboutRatio, aboutMisses(m, err))
	return nil
}

const notes = `
Each message goes to another QP or MR than the one before it. Its baseline is the same order and window with 64 of them.
%s%s
`
