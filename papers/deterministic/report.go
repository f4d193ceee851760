package deterministic

import (
	"fmt"
	"io"
	"strings"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/stat"
	"github.com/gorxe/gorxe/papers/kit"
)

// Result is the JSON form of a figure.
type Result struct {
	kit.Row
	Paper     *float64 `json:"paper"` // the paper's value in Unit, null if it gives none
	PaperBase *float64 `json:"paper_baseline_value,omitempty"`
	Note      string   `json:"note,omitempty"`
}

// Report is the outcome of a run. It implements kit.Report.
type Report struct {
	Results []Result

	datapath string
	config   Config
	figures  []*figure
}

func (b *bench) report() *Report {
	r := &Report{Results: []Result{}, datapath: b.datapath, config: b.Config, figures: b.figures}
	for _, f := range b.figures {
		r.Results = append(r.Results, Result{
			Row:   kit.Compare(f.name, f.unit, f.baseline, f.values, f.base),
			Paper: f.paper, PaperBase: f.paperBase, Note: f.note,
		})
	}
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
	fmt.Fprintf(w, "virtual time: %d Mb/s, %v, %d B per packet; real time: %s; medians of %s\n\n",
		linkRate/1_000_000, linkDelay, pathMTU, r.datapath, cli.Count(r.config.Rounds, "round"))
	t := cli.Table{Columns: []cli.Column{
		{Title: "figure"}, {Title: "classes", Align: cli.Right}, {Title: "unit"},
		{Title: "paper", Align: cli.Right}, {Title: "baseline"},
		{Title: "value", Align: cli.Right}, {Title: "paper", Align: cli.Right},
		{Title: "ratio", Align: cli.Right}, {Title: "spread", Align: cli.Right}, {Title: "details"},
	}}
	for i := range r.Results {
		f := &r.Results[i]
		t.Row(f.Name, number(&f.Value), f.Unit, number(f.Paper), f.Baseline,
			number(&f.BaselineValue), number(f.PaperBase), f.RatioText(3), f.SpreadText(), f.Note)
	}
	if err := t.Write(w); err != nil {
		return err
	}
	_, err := io.WriteString(w, notes+kit.AboutRatio)
	return err
}

const notes = `
classes: traffic classes of the engine. classes_no_limit: without the limit of what is queued below it.
no_classes: one class. layer: the scheduler of package
transport/flow without preemption points. layer_64KiB: with a preemption point every 64 KiB. sweep_P:
preemption points every P bytes, of the engine and of the layer. overhead: what the scheduler adds to
the latency of a message without it. overhead and class7 are measured in real time, and are no
guarantee.
`

// number formats a figure with about four significant digits.
func number(f *float64) string {
	if f == nil {
		return "-"
	}
	return fmt.Sprintf("%.4g", *f)
}

// Panels implements kit.Report.
func (r *Report) Panels() []kit.Panel {
	var panels []kit.Panel
	add := func(c *kit.Curves) {
		for _, l := range c.Lines {
			if len(l.X) > 0 {
				panels = append(panels, c)
				return
			}
		}
	}
	add(r.latencyPanel())
	add(r.overheadPanel())
	for _, s := range []struct{ kind, title, y string }{
		{"latency", "Preemption points: longest latency of the high class", "ms"},
		{"goodput", "Preemption points: goodput of the low class", "Mb/s"},
	} {
		add(r.sweepPanel(s.kind, s.title, s.y))
	}
	for _, s := range []struct{ name, title string }{
		{"order_3x4", "Packets in order, share"},
		{"yolo_end_to_end_beside_bulk", "YOLO beside bulk traffic, ms"},
		{"rates_30_100Hz_at_100Hz", "Jitter at 100 Hz, ms"},
		{"overload", "Overload: high class in time, share"},
	} {
		if bars := r.bars(s.name, s.title); len(bars.Bars) > 0 {
			panels = append(panels, bars)
		}
	}
	return panels
}

// lines returns a line for classes and one for each baseline that the paper's experiment has.
func lines() (list []kit.Line, index map[string]int) {
	index = map[string]int{}
	list = []kit.Line{{Name: classes.name, Style: kit.Markers}}
	for i, m := range baselines {
		list = append(list, kit.Line{Name: m.name, Style: kit.Markers})
		index[m.name] = i + 1
	}
	return list, index
}

func (r *Report) latencyPanel() *kit.Curves {
	c := &kit.Curves{Title: "Three priorities: longest / shortest latency of the highest",
		X: "message, MiB", Y: "max / min", LogX: true, PowersOf2: true, ZeroY: true}
	all, index := lines()
	paper := kit.Line{Name: "standard RDMA, stated in the paper", Style: kit.Rings}
	for _, f := range r.figures {
		var mb float64
		if _, err := fmt.Sscanf(f.name, "hp_latency_%fMB", &mb); err != nil {
			continue
		}
		if f.baseline == noClasses.name {
			all[0].Add(mb, stat.Median(f.values))
		}
		if i, ok := index[f.baseline]; ok {
			all[i].Add(mb, stat.Median(f.base))
		}
		if f.paperBase != nil {
			paper.Add(mb, *f.paperBase)
		}
	}
	c.Lines = append(all, paper)
	return c
}

func (r *Report) overheadPanel() *kit.Curves {
	c := &kit.Curves{Title: "Overhead of the scheduler", X: "message, KiB", Y: "us", LogX: true,
		PowersOf2: true, ZeroY: true}
	own := kit.Line{Name: "measured", Style: kit.Markers}
	paper := kit.Line{Name: "paper", Style: kit.Dashed}
	for _, f := range r.figures {
		size, ok := strings.CutPrefix(f.name, "overhead_")
		if !ok {
			continue
		}
		bytes, err := cli.ParseSize(size)
		if err != nil {
			continue
		}
		own.Add(float64(bytes>>10), stat.Median(f.values))
		paper.Add(float64(bytes>>10), *f.paper)
	}
	c.Lines = []kit.Line{own, paper}
	return c
}

func (r *Report) sweepPanel(kind, title, y string) *kit.Curves {
	c := &kit.Curves{Title: title, X: "P, KiB", Y: y, LogX: true, PowersOf2: true, ZeroY: true}
	list := []kit.Line{{Name: classes.name, Style: kit.Markers},
		{Name: wholeLayer.name, Style: kit.Markers}}
	for _, f := range r.figures {
		size, ok := strings.CutPrefix(f.name, "sweep_P_")
		if !ok {
			continue
		}
		if size, ok = strings.CutSuffix(size, "_"+kind); !ok {
			continue
		}
		bytes, err := cli.ParseSize(size)
		if err != nil {
			continue
		}
		list[0].Add(float64(bytes>>10), stat.Median(f.values))
		list[1].Add(float64(bytes>>10), stat.Median(f.base))
	}
	c.Lines = list
	return c
}

func (r *Report) bars(name, title string) *kit.Bars {
	b := &kit.Bars{Title: title}
	for _, f := range r.figures {
		if f.name != name {
			continue
		}
		if len(b.Bars) == 0 {
			b.Bars = append(b.Bars, kit.Bar{Label: classes.name, Values: f.values, Own: true})
		}
		b.Bars = append(b.Bars, kit.Bar{Label: f.baseline, Values: f.base})
	}
	return b
}
