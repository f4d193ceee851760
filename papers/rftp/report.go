package rftp

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/papers/kit"
	"github.com/gorxe/gorxe/papers/rftp/live"
	"github.com/gorxe/gorxe/transport/rftp"
)

// Value is a figure. The baseline of rates is the largest goodput that the link permits with path
// MTU 4096, and that of times is the round trip.
type Value struct {
	kit.Row
	// Target is the least ratio, or the largest one if AtMost; null: none.
	Target *float64 `json:"target"`
	AtMost bool     `json:"at_most,omitempty"`
	// Model is what the credits permit; null: the link is the limit.
	Model *float64 `json:"model"`

	about string
}

// Report is the outcome of Run. It implements kit.Report.
type Report struct {
	Values []Value      // in virtual time
	Live   *live.Report // in real time; nil: none

	seed  uint64
	list  []experiment
	found []result
}

func newReport(o *Options, list []experiment, found []result) *Report {
	r := &Report{Values: []Value{}, seed: o.Seed, list: list, found: found}
	for i := range list {
		for k := range list[i].figures {
			f := &list[i].figures[k]
			if len(o.Only) == 0 || slices.Contains(o.Only, f.name) {
				r.Values = append(r.Values, list[i].measure(f, &found[i]))
			}
		}
	}
	return r
}

func (e *experiment) measure(f *figure, r *result) Value {
	p := path{bits: int64(e.bits)}
	value, base, baseline := r.bits/gbps, p.goodput()/gbps, "goodput"
	if f.ramp {
		value, base, baseline = millis(e.transfer.ramp(&r.outcome)), millis(e.transfer.rtt), "round trip"
	}
	v := Value{Row: kit.Compare(f.name, f.unit, baseline, []float64{value}, []float64{base}),
		about: e.about}
	if f.model > 0 {
		v.Model = number(f.model)
	}
	if f.low > 0 {
		v.Target = number(f.low)
	}
	if f.high > 0 {
		v.Target, v.AtMost = number(f.high), true
	}
	return v
}

func millis(d time.Duration) float64 { return d.Seconds() * 1e3 }

func number(f float64) *float64 {
	f = kit.Round(f)
	return &f
}

// Missed reports whether the figure misses its target.
func (v *Value) Missed() bool {
	return v.Target != nil && ((v.AtMost && *v.Ratio > *v.Target) ||
		(!v.AtMost && *v.Ratio < *v.Target))
}

// Warn implements kit.Report. Simulations need no warnings.
func (r *Report) Warn(w io.Writer) {
	if r.Live != nil {
		r.Live.Warn(w)
	}
}

// JSON implements kit.Report.
func (r *Report) JSON() any {
	list := make([]any, 0, len(r.Values))
	for i := range r.Values {
		list = append(list, &r.Values[i])
	}
	if r.Live != nil {
		for i := range r.Live.Results {
			list = append(list, &r.Live.Results[i])
		}
	}
	return list
}

// WriteTable implements kit.Report.
func (r *Report) WriteTable(w io.Writer) error {
	if len(r.Values) > 0 {
		if err := r.writeSimulated(w); err != nil {
			return err
		}
	}
	if r.Live == nil {
		return nil
	}
	if len(r.Values) > 0 {
		fmt.Fprintln(w)
	}
	return r.Live.WriteTable(w)
}

func (r *Report) writeSimulated(w io.Writer) error {
	t := cli.Table{Columns: []cli.Column{
		{Title: "figure"}, {Title: "value", Align: cli.Right}, {Title: "unit"},
		{Title: "baseline"}, {Title: "value", Align: cli.Right},
		{Title: "ratio", Align: cli.Right}, {Title: "target"}, {Title: "result"},
		{Title: "model", Align: cli.Right}, {Title: "transfer"},
	}}
	for i := range r.Values {
		v := &r.Values[i]
		target, verdict := kit.TargetText(v.Target, v.AtMost, v.Missed(), 2)
		model := "-"
		if v.Model != nil {
			model = short(*v.Model)
		}
		t.Row(v.Name, short(v.Value), v.Unit, v.Baseline, short(v.BaselineValue), v.RatioText(3),
			target, verdict, model, v.about)
	}
	if err := t.Write(w); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\nSeed %d. %s", r.seed, notes)
	return err
}

func short(f float64) string { return strconv.FormatFloat(f, 'g', 4, 64) }

// notes explain the table.
const notes = `Simulated in virtual time: the figures do not depend on this machine.
wan: 10 Gb/s, 49 ms; measured after 10 s. goodput: the largest payload per second that the link permits
with path MTU 4096. ramp: time from opening a session until nine tenths of that are reached. model: what
the credits permit.
`

// Panels implements kit.Report: the beginning of the transfers over the long path, the rates on the
// short one, and the figures in real time.
func (r *Report) Panels() []kit.Panel {
	panels := []kit.Panel{
		r.curve("10 Gb/s, 49 ms", false), r.curve("The same, without congestion control", true),
	}
	blocks := &kit.Curves{Title: "25 Gb/s, 25 us, by block size", X: "KiB", Y: unitBW, LogX: true,
		PowersOf2: true, ZeroY: true}
	for _, n := range streams {
		line := kit.Line{Name: cli.Count(n, "stream"), Style: kit.Markers}
		for i := range r.list {
			if t := r.list[i].transfer; t != nil && strings.HasPrefix(r.list[i].name, "lan_") &&
				t.qps == n {
				line.Add(float64(t.block/kib), r.found[i].bits/gbps)
			}
		}
		blocks.Lines = append(blocks.Lines, line)
	}
	panels = append(panels, blocks)
	for _, depth := range verbDepths {
		ops := &kit.Curves{Title: fmt.Sprintf("Single operations, %d outstanding", depth), X: "KiB",
			Y: unitBW, LogX: true, PowersOf2: true, ZeroY: true}
		for _, op := range verbOps {
			line := kit.Line{Name: op.String(), Style: kit.Markers}
			for i := range r.list {
				if s := r.list[i].verbs; s != nil && s.Senders[0].Op == op &&
					s.Senders[0].Depth == depth {
					line.Add(float64(s.Senders[0].Size/kib), r.found[i].bits/gbps)
				}
			}
			ops.Lines = append(ops.Lines, line)
		}
		panels = append(panels, ops)
	}
	panels = slices.DeleteFunc(panels, func(p kit.Panel) bool {
		for _, l := range p.(*kit.Curves).Lines {
			if len(l.X) > 0 {
				return false
			}
		}
		return true
	})
	if r.Live != nil {
		panels = append(panels, r.Live.Panels()...)
	}
	return panels
}

// curve shows the rates of the transfers with one stream over the long path, from the beginning.
func (r *Report) curve(title string, free bool) *kit.Curves {
	c := &kit.Curves{Title: title, X: "s", Y: unitBW, ZeroY: true}
	for i := range r.list {
		t := r.list[i].transfer
		if t == nil || t.path.rtt != wan.rtt || t.loss > 0 || t.qps != 1 || t.free != free ||
			(t.pool != wanPool && t.mode != rftp.OnDemand) {
			continue
		}
		c.Lines = append(c.Lines, r.found[i].line(t.mode.String(), t.warmup+t.time))
	}
	return c
}

// line is the rate over intervals of two round trips of the long path, in the beginning of a
// transfer that takes total.
func (r *result) line(name string, total time.Duration) kit.Line {
	const most = 1500 * ms
	span := 2 * wan.rtt
	until := min(most, total) - span
	l := kit.Line{Name: name}
	next := 0
	for at := time.Duration(0); at < until; at += span {
		bytes := 0
		for ; next < len(r.arrivals) && r.arrivals[next].at <= at+span; next++ {
			bytes += r.arrivals[next].bytes
		}
		l.Add((at + span).Seconds(), float64(bytes)*8/span.Seconds()/gbps)
	}
	return l
}

var _ kit.Report = (*Report)(nil)
