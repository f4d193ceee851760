package scale

import (
	"fmt"
	"io"
	"time"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/stat"
	"github.com/gorxe/gorxe/papers/kit"
)

// Result compares a lane with the one that has 64 QPs or MRs.
type Result struct {
	kit.Row
	Link     string `json:"link"`
	QPs      int    `json:"qps"`
	MRs      int    `json:"mrs"`
	Order    string `json:"order"`
	Prefetch int    `json:"prefetch"` // window; 0 means off

	Misses *float64 `json:"llc_misses_per_message,omitempty"` // if the processor has a counter
}

// Report is the outcome of a run. It implements kit.Report.
type Report struct {
	Results []Result

	config   Config
	datapath string
	qps, mrs int // of each device
	setup    time.Duration
	size     footprint
}

func (b *bench) report() *Report {
	r := &Report{
		Results: []Result{}, // in JSON an empty array instead of null
		config:  b.Config, datapath: b.d.Dev[0].Info().Datapath,
		qps: len(b.d.send.QPs), mrs: len(b.d.send.mrs), setup: b.d.setup, size: b.d.size,
	}
	for i := range b.lanes {
		r.Results = append(r.Results, b.result(&b.lanes[i]))
	}
	return r
}

func (b *bench) result(l *lane) Result {
	rate := func(s *sample) float64 { return s.rate }
	v, base := kit.Column(b.samples[*l], rate), kit.Column(b.samples[l.base()], rate)
	r := Result{
		Row:  kit.Compare(l.name, unitRate, l.baseline(), v, base),
		Link: b.Link, QPs: l.qps, MRs: l.mrs, Order: string(l.order), Prefetch: l.prefetch,
	}
	misses := kit.Column(b.samples[*l], func(s *sample) float64 { return s.misses })
	if m := stat.Median(misses); m >= 0 {
		m = kit.Round(m)
		r.Misses = &m
	}
	return r
}

// Warn implements kit.Report.
func (r *Report) Warn(w io.Writer) {
	if r.config.Rounds == 1 {
		fmt.Fprintln(w, "One round does not show the variation: these ratios are unreliable. Choose more --rounds.")
	}
	kit.WarnScattered(w, r.Results, func(r *Result) *kit.Row { return &r.Row })
}

// JSON implements kit.Report.
func (r *Report) JSON() any { return r.Results }

// WriteTable implements kit.Report.
func (r *Report) WriteTable(w io.Writer) error {
	c := &r.config
	fmt.Fprintf(w, "%s link (%s), %s per message, bursts of %d; CPUs %d and %d; medians of %s of %v\n",
		c.Link, r.datapath, cli.FormatSize(msgSize), c.Burst, c.CPUs[0], c.CPUs[1],
		cli.Count(c.Rounds, "round"), c.Duration)
	fmt.Fprintf(w, "%s and %s per device, created and connected in %v%s\n\n",
		cli.Count(r.qps, "QP"), cli.Count(r.mrs, "MR"), r.setup.Round(time.Millisecond), r.size)
	if err := r.writeRows(w); err != nil {
		return err
	}
	m, err := newMissCounter()
	m.close()
	fmt.Fprintf(w, notes, kit.AboutRatio, aboutMisses(m, err))
	return nil
}

const notes = `
Each message uses another QP or MR than the previous one. The baseline has the same order and window
with 64 of them.
%s%s
`

func (r *Report) writeRows(w io.Writer) error {
	t := cli.Table{Columns: []cli.Column{
		{Title: "figure"}, {Title: "QPs", Align: cli.Right}, {Title: "MRs", Align: cli.Right},
		{Title: "order"}, {Title: "window", Align: cli.Right}, {Title: unitRate, Align: cli.Right},
		{Title: "baseline"}, {Title: "value", Align: cli.Right}, {Title: "ratio", Align: cli.Right},
		{Title: "spread", Align: cli.Right}, {Title: "misses", Align: cli.Right},
	}}
	for i := range r.Results {
		x := &r.Results[i]
		misses := "?"
		if x.Misses != nil {
			misses = fmt.Sprintf("%.2f", *x.Misses)
		}
		window := "off"
		if x.Prefetch > 0 {
			window = fmt.Sprint(x.Prefetch)
		}
		t.Row(x.Name, x.QPs, x.MRs, x.Order, window, fmt.Sprintf("%.3f", x.Value), x.Baseline,
			fmt.Sprintf("%.3f", x.BaselineValue), x.RatioText(2), x.SpreadText(), misses)
	}
	return t.Write(w)
}

// Panels implements kit.Report: a panel for QPs and one for MRs, with a curve for each order and
// window.
func (r *Report) Panels() []kit.Panel {
	var all []kit.Panel
	for _, p := range []struct{ name, title, x string }{
		{nameQPs, "64 B WRITEs over many QPs", "QPs"},
		{nameMRs, "64 B WRITEs over many memory regions", "MRs"},
	} {
		c := &kit.Curves{Title: p.title, X: p.x, Y: unitRate, LogX: true, PowersOf2: true,
			ZeroY: true}
		line := map[string]int{} // index by name
		for i := range r.Results {
			x := &r.Results[i]
			if x.Name != p.name {
				continue
			}
			name, style := fmt.Sprintf("%s, window %d", x.Order, x.Prefetch), kit.Solid
			if x.Prefetch == 0 {
				name, style = x.Order+", no prefetch", kit.Dashed
			}
			k, known := line[name]
			if !known {
				k = len(c.Lines)
				line[name] = k
				c.Lines = append(c.Lines, kit.Line{Name: name, Style: style})
			}
			count := x.QPs
			if p.name == nameMRs {
				count = x.MRs
			}
			c.Lines[k].Add(float64(count), x.Value)
		}
		if len(c.Lines) > 0 {
			all = append(all, c)
		}
	}
	return all
}
