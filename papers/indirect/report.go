package indirect

import (
	"fmt"
	"io"
	"time"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/stat"
	"github.com/gorxe/gorxe/papers/kit"
)

// Report is the outcome of a run. It implements kit.Report.
type Report struct {
	Results []kit.Result

	config          Config
	datapath        string
	series          []kit.Series
	starved, trials int
}

func (b *bench) report() *Report {
	seconds := func(o *outcome) float64 { return o.total.Seconds() }
	series := []kit.Series{}
	for i := range b.experiments {
		x := &b.experiments[i]
		o := b.outcomes[x.name]
		series = append(series, kit.Series{
			Name: x.name, Unit: "s", Baseline: methodDirect,
			Values: kit.Column(o.indirect, seconds),
			Base:   kit.Column(o.direct, seconds), Paper: x.paper, Note: o.note(),
		})
	}
	return &Report{
		Results: kit.Results(series),
		config:  b.Config, datapath: b.datapath, series: series, starved: b.starved,
		trials: b.trials(),
	}
}

// note describes the last round.
func (r *outcomes) note() string {
	o, d := &r.indirect[len(r.indirect)-1], &r.direct[len(r.direct)-1]
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1e3 }
	return fmt.Sprintf("%d indirect (%d parked); refused %d / %d, timed out %d / %d; waited %.1f / %.1f ms",
		o.counters.Indirect, o.served.Parked, o.counters.InvalidAnswers, d.counters.InvalidAnswers,
		o.counters.Timeouts, d.counters.Timeouts, ms(o.waited), ms(d.waited))
}

// Warn implements kit.Report.
func (r *Report) Warn(w io.Writer) {
	kit.WarnStarved(w, r.starved, r.trials, "a side")
	kit.WarnScatteredResults(w, r.Results)
}

// JSON implements kit.Report.
func (r *Report) JSON() any { return r.Results }

// WriteTable implements kit.Report.
func (r *Report) WriteTable(w io.Writer) error {
	c := &r.config
	rate := "unlimited rate"
	if c.Rate > 0 {
		rate = fmt.Sprintf("%d Mbit/s", c.Rate)
	}
	fmt.Fprintf(w, "%s; %d WRITEs of %s in a row, %d B per packet, window %d, %s; request timeout %v; medians of %s\n\n",
		r.datapath, c.Transfers, cli.FormatSize(int64(c.Size)), paperMTU, window, rate, c.Timeout,
		cli.Count(c.Rounds, "round"))
	if err := kit.WriteTable(w, methodIndirect, r.Results); err != nil {
		return err
	}
	_, err := io.WriteString(w, notes)
	return err
}

const notes = `
The values are total times in seconds until the last transfer is released. The details are from the
last round, indirect / direct: refused registrations, request timeouts, and the sum of the times that
transfers waited until their data could be sent. pings_N: three pings of 256, 512 and 1024 B beside
packets with N bytes of payload.
` + kit.AboutRatio

// Panels implements kit.Report: the paper's figures 4 to 7, and the ratios beside the paper's.
func (r *Report) Panels() []kit.Panel {
	var panels []kit.Panel
	for _, kind := range []struct{ prefix, title, x string }{
		{"frp_", "Failed registrations", "FRP, %"}, {"lfp_", "Lost frames", "LFP, %"},
		{"frp_lfp_", "Both", "FRP = LFP, %"}, {"pings_", "Beside three pings", "bytes per packet"},
	} {
		times := &kit.Curves{
			Title: kind.title, X: kind.x, Y: "total time, s", ZeroY: true,
			Lines: []kit.Line{{Name: methodIndirect}, {Name: methodDirect, Style: kit.Dashed}},
		}
		ratios := &kit.Curves{
			Title: kind.title + ": indirect / direct", X: kind.x, Y: "ratio",
			Lines: []kit.Line{{Name: "measured"}, {Name: "paper", Style: kit.Dashed}},
		}
		for i := range r.series {
			s := &r.series[i]
			var x int
			if _, err := fmt.Sscanf(s.Name, kind.prefix+"%d", &x); err != nil {
				continue
			}
			value, base := stat.Median(s.Values), stat.Median(s.Base)
			times.Lines[0].Add(float64(x), value)
			times.Lines[1].Add(float64(x), base)
			ratios.Lines[0].Add(float64(x), value/base)
			if s.Paper != nil {
				ratios.Lines[1].Add(float64(x), *s.Paper)
			}
		}
		if len(times.Lines[0].X) > 0 {
			panels = append(panels, times, ratios)
		}
	}
	return panels
}
