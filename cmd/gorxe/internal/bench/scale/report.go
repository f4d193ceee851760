package scale

import (
	"fmt"
	"io"

	"github.com/gorxe/gorxe/cmd/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/stat"
)

// maxSpread is how far the ratio of single rounds may scatter, (max-min)/median, before their median says nothing.
const maxSpread = 0.5

// Result is one lane against the one with 64 QPs or MRs.
type Result struct {
	Name          string   `json:"name"`
	Value         float64  `json:"value"` // median over the rounds
	Unit          string   `json:"unit"`
	Baseline      string   `json:"baseline"`
	BaselineValue float64  `json:"baseline_value"` // median over the rounds
	Ratio         *float64 `json:"ratio"`          // median of the ratios of the rounds; null if they scatter too far
	Spread        float64  `json:"spread"`         // (max-min)/median of the ratios of the rounds
	Link          string   `json:"link"`
	QPs           int      `json:"qps"`
	MRs           int      `json:"mrs"`
	Order         string   `json:"order"`
	Prefetch      int      `json:"prefetch"` // window; 0: off

	Misses *float64 `json:"llc_misses_per_message,omitempty"` // where the processor tells
}

const digits = 4

func column(list []sample, of func(*sample) float64) []float64 {
	v := make([]float64, len(list))
	for i := range list {
		v[i] = of(&list[i])
	}
	return v
}

func rateOf(s *sample) float64 { return s.rate }

func (b *bench) result(l *lane) Result {
	base := l.base()
	v, against := column(b.samples[*l], rateOf), column(b.samples[base], rateOf)
	ratios := stat.Ratios(v, against)
	r := Result{
		Name: l.name, Value: cli.Round(stat.Median(v), digits), Unit: unitRate,
		Baseline: l.baseline(), BaselineValue: cli.Round(stat.Median(against), digits),
		Spread: cli.Round(stat.Spread(ratios), digits),
		Link:   b.w.link, QPs: l.qps, MRs: l.mrs, Order: string(l.order), Prefetch: l.prefetch,
	}
	if r.Spread <= maxSpread {
		ratio := cli.Round(stat.Median(ratios), digits)
		r.Ratio = &ratio
	}
	if m := stat.Median(column(b.samples[*l], func(s *sample) float64 { return s.misses })); m >= 0 {
		m = cli.Round(m, digits)
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
		ratio, misses := "-", "?"
		if r.Ratio != nil {
			ratio = fmt.Sprintf("%.2f", *r.Ratio)
		}
		if r.Misses != nil {
			misses = fmt.Sprintf("%.2f", *r.Misses)
		}
		window := "off"
		if r.Prefetch > 0 {
			window = fmt.Sprint(r.Prefetch)
		}
		t.Row(r.Name, r.QPs, r.MRs, r.Order, window, fmt.Sprintf("%.3f", r.Value), r.Baseline, fmt.Sprintf("%.3f", r.BaselineValue),
			ratio, fmt.Sprintf("%.0f%%", r.Spread*100), misses)
	}
	return t.Write(w)
}

// scattered are the results that have no ratio.
func scattered(list []Result) (n int, worst float64) {
	for i := range list {
		if list[i].Ratio == nil {
			n++
			worst = max(worst, list[i].Spread)
		}
	}
	return n, worst
}

func (b *bench) write(w io.Writer, list []Result, cpus []int) error {
	fmt.Fprintf(w, "%s link (%s), %s a message, bursts of %d; CPUs %d and %d; medians of %s of %v\n",
		b.w.link, b.w.datapath, cli.FormatSize(msgSize), b.burst, cpus[0], cpus[1], cli.Count(b.rounds, "round"), b.duration)
	fmt.Fprintf(w, "%s and %s a device, made and connected in %v; %d bytes of heap a QP and MR, both ends and rings included\n\n",
		cli.Count(len(b.w.a.qps), "QP"), cli.Count(len(b.w.a.mrs), "MR"), b.w.made.Round(1e6), b.w.bytes)
	if err := writeTable(w, list); err != nil {
		return err
	}
	fmt.Fprint(w, notes)
	return nil
}

const notes = `
Each message goes to another QP or MR than the one before it. The ratio is to the same order and window with 64 of them; spread is
(max-min)/median of the ratio over the rounds. misses are the last-level cache's per message; ? where the processor does not tell.
`
