package figures

import (
	"fmt"
	"io"
	"slices"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/netsim"
	"github.com/gorxe/gorxe/papers/kit"
)

// Value is a figure that was measured.
type Value struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	// LinkShare is the payload of all flows as a share of the link's bandwidth.
	LinkShare float64 `json:"link_share"`

	figure *figure
	about  string
}

// Report is the outcome of Run. It implements kit.Report.
type Report struct {
	Values []Value // the chosen figures

	all     []Value // also those to which targets refer
	seed    uint64
	results map[string]*outcome
}

// outcome is the result of an experiment.
type outcome struct {
	*experiment
	netsim.Result
}

// digits is the number of decimals of values and shares.
const digits = 4

func newReport(o *Options, list []experiment, results []netsim.Result) *Report {
	r := &Report{Values: []Value{}, seed: o.Seed, results: map[string]*outcome{}}
	for i := range list {
		e := &list[i]
		out := &outcome{e, results[i]}
		r.results[e.name] = out
		for k := range e.figures {
			v := out.measure(&e.figures[k])
			r.all = append(r.all, v)
			if len(o.Only) == 0 || slices.Contains(o.Only, v.Name) {
				r.Values = append(r.Values, v)
			}
		}
	}
	return r
}

// measure takes a figure of a result.
func (o *outcome) measure(f *figure) Value {
	v := Value{Name: f.name, Unit: f.unit, figure: f, about: o.about,
		LinkShare: cli.Round(o.Bits/o.bits, digits), Value: o.Bits / gbps}
	if f.value != nil {
		v.Value = f.value(&o.Result)
	}
	v.Value = cli.Round(v.Value, digits)
	return v
}

// share returns the link share of a figure that was measured.
func (r *Report) share(name string) float64 {
	i := slices.IndexFunc(r.all, func(v Value) bool { return v.Name == name })
	return r.all[i].LinkShare
}

// verdict returns the target of a figure as text, and whether the figure reaches it. Without a
// target the text is empty.
func (r *Report) verdict(v *Value) (want string, ok bool) {
	f := v.figure
	got, low := v.Value, f.low
	if f.value == nil {
		got = v.LinkShare
	}
	switch {
	case f.low == 0 && f.high == 0:
		return "", true
	case f.of != "":
		low = cli.Round(low*r.share(f.of), digits)
		want = fmt.Sprintf(">= %.3f", low)
	case f.high != 0:
		want = fmt.Sprintf("%.2f to %.2f", f.low, f.high)
	default:
		want = fmt.Sprintf(">= %.2f", f.low)
	}
	return want, got >= low && (f.high == 0 || got <= f.high)
}

// Warn implements kit.Report. Simulations need no warnings.
func (r *Report) Warn(io.Writer) {}

// JSON implements kit.Report.
func (r *Report) JSON() any { return r.Values }

// WriteTable implements kit.Report.
func (r *Report) WriteTable(w io.Writer) error {
	t := cli.Table{Columns: []cli.Column{
		{Title: "figure"}, {Title: "value", Align: cli.Right}, {Title: "unit"},
		{Title: "link share", Align: cli.Right}, {Title: "target"}, {Title: "result"},
		{Title: "network"},
	}}
	missed := 0
	for i := range r.Values {
		v := &r.Values[i]
		want, ok := r.verdict(v)
		verdict := ""
		switch {
		case !ok:
			verdict = "FAIL"
			missed++
		case want != "":
			verdict = "pass"
		}
		t.Row(v.Name, fmt.Sprintf("%.3f", v.Value), v.Unit, fmt.Sprintf("%.3f", v.LinkShare), want,
			verdict, v.about)
	}
	if err := t.Write(w); err != nil {
		return err
	}
	fmt.Fprintf(w, "\nSeed %d. ", r.seed)
	if missed > 0 {
		fmt.Fprintf(w, "%s missed. ", cli.Count(missed, "target"))
	}
	_, err := io.WriteString(w, notes)
	return err
}

// notes explain the table.
const notes = `Simulated in virtual time: the figures do not depend on this machine.
link share is the payload of all flows as a share of the link's bandwidth; targets of figures in Gb/s
are about it. The target of READ is 0.9 of WRITE.
`

var _ kit.Report = (*Report)(nil)
