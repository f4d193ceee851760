package bench

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/stat"
	"github.com/gorxe/gorxe/papers/kit"
)

// Result is one row of the output: gorxe against a baseline.
type Result struct {
	kit.Row

	P99         float64 `json:"p99,omitempty"`          // latencies: the same unit, median over the rounds
	BaselineP99 float64 `json:"baseline_p99,omitempty"` //
	CPU         float64 `json:"cpu_s_per_gb,omitempty"` // bandwidths: CPU seconds of both sides per 10^9 bytes of messages
	BaselineCPU float64 `json:"baseline_cpu_s_per_gb,omitempty"`
	Retransmits uint64  `json:"retransmits,omitempty"` // packets that gorxe sent again, all rounds together
}

func valueOf(s *sample) float64 { return s.value }
func p99Of(s *sample) float64   { return s.p99 }
func cpuOf(s *sample) float64   { return s.cpu }

// results sets the lanes of a figure against each other.
func (f *figure) results(samples map[string][]sample) []Result {
	var list []Result
	for i := range f.rows {
		lane, against := f.rows[i].lanes()
		v, base := samples[lane], samples[against]
		name := f.rows[i].name
		if name == "" {
			name = f.name
		}
		med := func(of func(*sample) float64, list []sample) float64 {
			return kit.Round(stat.Median(kit.Column(list, of)))
		}
		r := Result{
			Row: kit.Compare(name, f.unit, f.rows[i].baseline, kit.Column(v, valueOf), kit.Column(base, valueOf)),
			P99: med(p99Of, v), BaselineP99: med(p99Of, base), CPU: med(cpuOf, v), BaselineCPU: med(cpuOf, base),
		}
		for k := range v {
			r.Retransmits += v[k].retransmits
		}
		list = append(list, r)
	}
	return list
}

// results are those of all figures, in order.
func (b *bench) results() []Result {
	list := []Result{} // an empty array in JSON, never null
	for i := range b.figures {
		list = append(list, b.figures[i].results(b.samples[b.figures[i].name])...)
	}
	return list
}

// more tells what else is known of a row.
func (r *Result) more() string {
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

// writeTable shows results to people.
func writeTable(w io.Writer, list []Result) error {
	t := cli.Table{Columns: []cli.Column{
		{Title: "figure"}, {Title: "gorxe", Align: cli.Right}, {Title: "unit"}, {Title: "against"}, {Title: "has", Align: cli.Right},
		{Title: "ratio", Align: cli.Right}, {Title: "spread", Align: cli.Right}, {Title: "more"},
	}}
	number := func(f float64) string { return fmt.Sprintf("%.3f", f) }
	for i := range list {
		r := &list[i]
		t.Row(r.Name, number(r.Value), r.Unit, r.Baseline, number(r.BaselineValue),
			r.RatioText(2), fmt.Sprintf("%.0f%%", r.Spread*100), r.more())
	}
	return t.Write(w)
}

// writeHead says what was measured on.
func (b *bench) writeHead(w io.Writer, cpus []int) {
	where := "a veth pair between two namespaces"
	if b.datapath == "memory" {
		where = "an in-memory link"
	}
	fmt.Fprintf(w, "%s on %s; CPUs %s; medians of %s of %v", b.datapath, where, joinInts(cpus), cli.Count(b.rounds, "round"), b.duration)
	if cc := congestionControl(); cc != "" && b.datapath != "memory" {
		fmt.Fprintf(w, "; TCP by %s", cc)
	}
	fmt.Fprint(w, "\n\n")
}

// notes explain the columns.
const notes = `
Latencies are round trips, medians; the blocking one is a WRITE with immediate. Bare frames (afxdp) are as long as gorxe's on
the wire, and nobody reads them; with afxdp-copy their receiver copies the payload out, as whoever delivers data has to. tcp sends
super-frames of 64 KiB uncut through the veth, which no wire does; tcp-notso sends segments of the path MTU. CPU is that of both
sides, kernel included. What is lossy is measured in every fifth round, five times as long.
` + kit.AboutRatio

func congestionControl() string {
	text, err := os.ReadFile("/proc/sys/net/ipv4/tcp_congestion_control")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

func joinInts(v []int) string {
	s := make([]string, len(v))
	for i, n := range v {
		s[i] = fmt.Sprint(n)
	}
	return strings.Join(s, " and ")
}
