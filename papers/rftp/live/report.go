package live

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/stat"
	"github.com/gorxe/gorxe/papers/kit"
)

// Result compares gorxe with a tool.
type Result struct {
	kit.Row
	// Target is the least ratio, or the largest one if AtMost; null: none.
	Target *float64 `json:"target"`
	AtMost bool     `json:"at_most,omitempty"`
	// CPU seconds of both sides per 10^9 bytes; 0: not known.
	CPU         float64 `json:"cpu_s_per_gb,omitempty"`
	BaselineCPU float64 `json:"baseline_cpu_s_per_gb,omitempty"`
	// Rounds is how often each side was measured.
	Rounds int `json:"rounds"`

	about string
}

// Report is the outcome of Run. It implements kit.Report.
type Report struct {
	Results []Result
	Skipped []string // tools and figures that could not be measured, with the reasons

	bench *bench
}

func rateOf(s *sample) float64 { return s.rate }
func cpuOf(s *sample) float64  { return s.cpu }

func (b *bench) report() *Report {
	r := &Report{Results: []Result{}, Skipped: b.skipped, bench: b}
	for i := range b.figures {
		f := &b.figures[i]
		for k := range f.rivals {
			r.Results = append(r.Results, f.results(&f.rivals[k], b.samples[f.name])...)
		}
	}
	return r
}

// results compares gorxe with a rival.
func (f *figure) results(v *rival, samples map[string][]sample) []Result {
	own, base := samples[f.own], samples[v.tool]
	column := func(list []sample, of func(*sample) float64) []float64 { return kit.Column(list, of) }
	median := func(list []sample) float64 { return kit.Round(stat.Median(column(list, cpuOf))) }
	r := Result{Row: kit.Compare(f.name, f.unit(), v.tool, column(own, rateOf), column(base, rateOf)),
		CPU: median(own), BaselineCPU: median(base), Rounds: len(own), about: f.about}
	if v.target > 0 {
		r.Target = &v.target
	}
	list := []Result{r}
	if v.cpu {
		one := 1.0
		list = append(list, Result{Row: kit.Compare(f.name+"_cpu", unitCPU, v.tool,
			column(own, cpuOf), column(base, cpuOf)), Target: &one, AtMost: true, Rounds: len(own),
			about: "CPU time of both sides"})
	}
	return list
}

// Missed reports whether the figure misses its target.
func (r *Result) Missed() bool {
	return r.Target != nil && r.Ratio != nil && ((r.AtMost && *r.Ratio > *r.Target) ||
		(!r.AtMost && *r.Ratio < *r.Target))
}

// Warn implements kit.Report.
func (r *Report) Warn(w io.Writer) {
	kit.WarnScattered(w, r.Results, func(r *Result) *kit.Row { return &r.Row })
}

// JSON implements kit.Report.
func (r *Report) JSON() any { return r.Results }

// WriteTable implements kit.Report.
func (r *Report) WriteTable(w io.Writer) error {
	c := &r.bench.Config
	fmt.Fprintf(w, "real time: %s; medians of %s; file %d MiB, tree of %d files\n\n",
		r.bench.datapath, cli.Count(c.Rounds, "round"), c.Size>>20, c.Files)
	t := cli.Table{Columns: []cli.Column{
		{Title: "figure"}, {Title: "gorxe", Align: cli.Right}, {Title: "unit"},
		{Title: "baseline"}, {Title: "value", Align: cli.Right},
		{Title: "ratio", Align: cli.Right}, {Title: "spread", Align: cli.Right},
		{Title: "target"}, {Title: "result"}, {Title: "CPU s/GB", Align: cli.Right},
		{Title: "copy"},
	}}
	for i := range r.Results {
		v := &r.Results[i]
		target, verdict := kit.TargetText(v.Target, v.AtMost, v.Missed(), -1)
		if v.Target != nil && v.Ratio == nil {
			verdict = "-"
		}
		cpu := ""
		if v.CPU > 0 {
			cpu = fmt.Sprintf("%.3f / %.3f", v.CPU, v.BaselineCPU)
		}
		t.Row(v.Name, kit.Short(v.Value), v.Unit, v.Baseline, kit.Short(v.BaselineValue),
			v.RatioText(2), v.SpreadText(), target, verdict, cpu, v.about)
	}
	if err := t.Write(w); err != nil {
		return err
	}
	for _, s := range r.Skipped {
		fmt.Fprintf(w, "Left out: %s.\n", s)
	}
	_, err := io.WriteString(w, notes+kit.AboutRatio)
	return err
}

const notes = `
rftp: package transport/rftp. send: gorxe send and recv. write_bw: gorxe perf write-bw, which sends the
same 64 KiB again and again; write_4m: the same from and to 4 MiB. gridftp: blocks with offsets over TCP
streams; _notso: without segmentation offload, so with segments of the MTU, as on a wire without a NIC
that segments. sendfile: io.Copy over TCP. rsync: over ssh; rsyncd: without ssh. Times of files include
the start of the commands, and the writing to disk. CPU is that of both sides including the kernel's.
`

// Panels implements kit.Report.
func (r *Report) Panels() (panels []kit.Panel) {
	for i := range r.bench.figures {
		f := &r.bench.figures[i]
		samples := r.bench.samples[f.name]
		p := &kit.Bars{Title: strings.ToUpper(f.about[:1]) + f.about[1:], X: f.unit()}
		for _, tool := range slices.Compact(f.tools()) {
			p.Bars = append(p.Bars, kit.Bar{Label: tool, Own: tool == f.own,
				Values: kit.Column(samples[tool], rateOf)})
		}
		panels = append(panels, p)
	}
	return panels
}

var _ kit.Report = (*Report)(nil)
