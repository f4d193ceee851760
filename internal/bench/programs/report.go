package programs

import (
	"fmt"
	"io"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/papers/kit"
)

// Result is one figure.
type Result struct {
	kit.Row
	Port string `json:"port"`
	// Target is the least ratio, or the largest one if AtMost. Without a baseline it is that of
	// the value.
	Target float64 `json:"target"`
	AtMost bool    `json:"at_most,omitempty"`
	// Missed is true if the target is missed, null if there is no ratio.
	Missed *bool `json:"missed"`
}

// Report is the outcome of Run. It implements kit.Report.
type Report struct {
	Results []Result

	bench *bench
}

func (b *bench) report() *Report {
	r := &Report{Results: []Result{}, bench: b}
	for i := range b.figures {
		f := &b.figures[i]
		r.Results = append(r.Results, f.result(b.samples[f.name]))
	}
	return r
}

func (f *figure) result(s *samples) Result {
	r := Result{Port: f.port(), Target: f.target, AtMost: f.atMost}
	judged := 0.0
	if f.base == nil {
		ones := make([]float64, len(s.values)) // so that Spread is that of the values
		for i := range ones {
			ones[i] = 1
		}
		r.Row = kit.Compare(f.name, f.unit, "", s.values, ones)
		r.BaselineValue, r.Ratio = 0, new(float64)
		judged = r.Value
	} else {
		r.Row = kit.Compare(f.name, f.unit, f.baseline, s.values, s.base)
		if r.Ratio == nil {
			return r
		}
		judged = *r.Ratio
	}
	missed := judged < f.target
	if f.atMost {
		missed = judged > f.target
	}
	r.Missed = &missed
	return r
}

// Warn implements kit.Report.
func (r *Report) Warn(w io.Writer) {
	kit.WarnScattered(w, r.Results, func(r *Result) *kit.Row { return &r.Row })
}

// JSON implements kit.Report.
func (r *Report) JSON() any { return r.Results }

// WriteTable implements kit.Report.
func (r *Report) WriteTable(w io.Writer) error {
	fmt.Fprintf(w, "two loopback addresses, UDP sockets; _xdp: a veth pair, AF_XDP; medians of %s\n\n",
		cli.Count(r.bench.Rounds, "round"))
	t := cli.Table{Columns: []cli.Column{
		{Title: "figure"}, {Title: "gorxe run", Align: cli.Right}, {Title: "unit"},
		{Title: "baseline"}, {Title: "value", Align: cli.Right},
		{Title: "ratio", Align: cli.Right}, {Title: "spread", Align: cli.Right},
		{Title: "target"}, {Title: "result"},
	}}
	for i := range r.Results {
		v := &r.Results[i]
		target, verdict := kit.TargetText(&v.Target, v.AtMost, v.Missed != nil && *v.Missed, -1)
		if v.Missed == nil {
			verdict = "-"
		}
		base, ratio := kit.Short(v.BaselineValue), v.RatioText(2)
		if v.Baseline == "" {
			base, ratio, target = "", "", target+" "+v.Unit
		}
		t.Row(v.Name, kit.Short(v.Value), v.Unit, v.Baseline, base, ratio, v.SpreadText(), target, verdict)
	}
	if err := t.Write(w); err != nil {
		return err
	}
	_, err := io.WriteString(w, notes+kit.AboutRatio)
	return err
}

const notes = `
write_: ib_write_bw and ib_write_lat on both sides, beside gorxe perf on both sides; latencies are
medians of half the round trip. data_path_calls: intercepted calls of both sides of ib_write_bw with
200,000 messages, beside a tenth of them. service_: gorxe perf on both sides, which share an address
through a node service, beside devices of their own. call_p50: the call QUERY_PORT, as the program
measures it.
idle_rss: memory of gorxe run (VmRSS) while a program has the device open and waits.
`

// Panels implements kit.Report.
func (r *Report) Panels() (panels []kit.Panel) {
	for i := range r.bench.figures {
		f := &r.bench.figures[i]
		s := r.bench.samples[f.name]
		panels = append(panels, &kit.Bars{Title: f.title, X: f.unit, Bars: []kit.Bar{
			{Label: "gorxe run", Own: true, Values: s.values}, {Label: f.baseline, Values: s.base},
		}})
	}
	return panels
}

var _ kit.Report = (*Report)(nil)
