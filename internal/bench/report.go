package bench

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/stat"
	"github.com/gorxe/gorxe/papers/kit"
)

// Result compares a lane, usually gorxe, with a baseline.
type Result struct {
	kit.Row

	// Port is the port of gorxe: xdp, udp, auto or memory.
	Port string `json:"port,omitempty"`
	// 99th percentiles of latencies in the unit of the row, medians over the rounds.
	P99         float64 `json:"p99,omitempty"`
	BaselineP99 float64 `json:"baseline_p99,omitempty"`
	// CPU seconds of both sides per 10^9 bytes of messages, of bandwidths.
	CPU         float64 `json:"cpu_s_per_gb,omitempty"`
	BaselineCPU float64 `json:"baseline_cpu_s_per_gb,omitempty"`
	// Packets that gorxe retransmitted in all rounds.
	Retransmits uint64 `json:"retransmits,omitempty"`
}

// Report is the outcome of a run. It implements kit.Report.
type Report struct {
	Results []Result

	bench *bench
}

func (b *bench) report() *Report {
	r := &Report{Results: []Result{}, bench: b} // in JSON an empty array instead of null
	for i := range b.figures {
		r.Results = append(r.Results, b.figures[i].results(b.samples[b.figures[i].name])...)
	}
	return r
}

func valueOf(s *sample) float64 { return s.value }

// results compares the lanes of a figure with each other.
func (f *figure) results(samples map[string][]sample) []Result {
	var list []Result
	for i := range f.rows {
		lane, against := f.rows[i].lanes()
		v, base := samples[lane], samples[against]
		name := f.rows[i].name
		if name == "" {
			name = f.name
		}
		median := func(list []sample, of func(*sample) float64) float64 {
			return kit.Round(stat.Median(kit.Column(list, of)))
		}
		p99 := func(s *sample) float64 { return s.p99 }
		cpu := func(s *sample) float64 { return s.cpu }
		r := Result{
			Port: f.portOf(lane),
			Row: kit.Compare(name, f.unit, f.rows[i].baseline, kit.Column(v, valueOf),
				kit.Column(base, valueOf)),
			P99: median(v, p99), BaselineP99: median(base, p99),
			CPU: median(v, cpu), BaselineCPU: median(base, cpu),
		}
		for k := range v {
			r.Retransmits += v[k].retransmits
		}
		list = append(list, r)
	}
	return list
}

// portOf returns the port of the lane with a name.
func (f *figure) portOf(name string) string {
	for i := range f.lanes {
		if f.lanes[i].name == name {
			return f.lanes[i].port
		}
	}
	return ""
}

// details returns further values for the table.
func (r *Result) details() string {
	var s []string
	if r.P99 > 0 {
		s = append(s, fmt.Sprintf("p99 %.1f / %.1f us", r.P99, r.BaselineP99))
	}
	if r.CPU > 0 {
		s = append(s, fmt.Sprintf("CPU %.3f / %.3f s/GB", r.CPU, r.BaselineCPU))
	}
	if r.Retransmits > 0 {
		s = append(s, fmt.Sprintf("%d retransmits", r.Retransmits))
	}
	return strings.Join(s, ", ")
}

// Warn implements kit.Report.
func (r *Report) Warn(w io.Writer) {
	kit.WarnStarved(w, r.bench.starved, r.bench.steps(), "a side")
	kit.WarnScattered(w, r.Results, func(r *Result) *kit.Row { return &r.Row })
}

// JSON implements kit.Report.
func (r *Report) JSON() any { return r.Results }

// WriteTable implements kit.Report.
func (r *Report) WriteTable(w io.Writer) error {
	r.bench.writeHead(w)
	t := cli.Table{Columns: []cli.Column{
		{Title: "figure"}, {Title: "port"}, {Title: "gorxe", Align: cli.Right}, {Title: "unit"}, {Title: "baseline"},
		{Title: "value", Align: cli.Right}, {Title: "ratio", Align: cli.Right},
		{Title: "spread", Align: cli.Right}, {Title: "details"},
	}}
	number := func(f float64) string { return fmt.Sprintf("%.3f", f) }
	for i := range r.Results {
		x := &r.Results[i]
		t.Row(x.Name, x.Port, number(x.Value), x.Unit, x.Baseline, number(x.BaselineValue),
			x.RatioText(2), x.SpreadText(), x.details())
	}
	if err := t.Write(w); err != nil {
		return err
	}
	_, err := io.WriteString(w, notes)
	return err
}

// writeHead describes the link and the rounds.
func (b *bench) writeHead(w io.Writer) {
	memory := slices.Contains(b.datapaths, portMemory)
	where := "a veth pair between two namespaces"
	if memory {
		where = "an in-memory link"
	}
	fmt.Fprintf(w, "%s on %s; CPUs %d and %d; medians of %s of %v",
		strings.Join(b.datapaths, " and "), where, b.CPUs[0], b.CPUs[1], cli.Count(b.Rounds, "round"), b.Duration)
	if cc := congestionControl(); cc != "" && !memory {
		fmt.Fprintf(w, "; TCP with %s", cc)
	}
	fmt.Fprint(w, "\n\n")
}

// notes explain the table.
const notes = `
Latencies are medians of round trips; the blocking ones are WRITEs with immediate. Bare frames
(afxdp) have the size of gorxe's packets, and the receiver ignores their payload; with afxdp-copy it
copies the payload, as a delivery requires. udp-gso sends runs of UDP packets of the same size with a
CRC that the receiver checks. tcp passes segments of 64 KiB through the veth pair, which
no wire does; tcp-notso sends segments of the path MTU. CPU is that of both sides including the
kernel. Lossy figures are measured in every fifth round, five times as long.
` + kit.AboutRatio

// congestionControl returns the name of TCP's algorithm, "" if it is unknown.
func congestionControl() string {
	text, err := os.ReadFile("/proc/sys/net/ipv4/tcp_congestion_control")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// Panels implements kit.Report: a panel for each figure with a bar for each lane.
func (r *Report) Panels() []kit.Panel {
	var panels []kit.Panel
	for i := range r.bench.figures {
		f := &r.bench.figures[i]
		bars := &kit.Bars{Title: f.title, X: f.unit + ", more is better"}
		if f.unit == unitLatency {
			bars.X = "us per round trip, less is better"
		}
		for k, l := range f.lanes {
			samples := r.bench.samples[f.name][l.name]
			bars.Bars = append(bars.Bars, kit.Bar{
				Label: l.label(), Values: kit.Column(samples, valueOf), Own: k == 0,
			})
		}
		panels = append(panels, bars)
	}
	return panels
}

// label returns the lane's name in the plot.
func (l *lane) label() string {
	switch {
	case l.loss > 0:
		return fmt.Sprintf("%s, %g %% loss", l.name, l.loss*100)
	case l.name == laneLossless:
		return "gorxe, no loss"
	case l.name == laneTCPLossless:
		return "tcp, no loss"
	}
	return l.name
}
