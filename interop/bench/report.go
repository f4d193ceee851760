package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"text/tabwriter"

	"github.com/gorxe/gorxe/internal/stat"
)

// result is one row of the output, in the format of 'gorxe bench --json'.
type result struct {
	Name          string  `json:"name"`
	Value         float64 `json:"value"` // median over the rounds
	Unit          string  `json:"unit"`
	Baseline      string  `json:"baseline"`
	BaselineValue float64 `json:"baseline_value"` // median over the rounds
	Ratio         float64 `json:"ratio"`          // median over the rounds of value/baseline_value
	RatioMin      float64 `json:"ratio_min"`      // smallest of a round
	RatioMax      float64 `json:"ratio_max"`      // largest of a round
	Spread        float64 `json:"spread"`         // of the ratio: see stat.Spread
	Rounds        int     `json:"rounds"`         // rounds with a value from both sides
	Verdict       string  `json:"verdict"`        // ahead, behind, or why it is unknown
	// latencies: the same unit, median over the rounds
	P99         float64 `json:"p99,omitempty"`
	BaselineP99 float64 `json:"baseline_p99,omitempty"`

	less bool // smaller is better
}

// compare makes a row from the values of all rounds, gorxe's and rxe's in the same order. A round
// with an unknown value (0) does not count. If none is left all fields are 0.
func compare(name, unit string, all, allBase []float64) result {
	var v, base []float64
	for i := range min(len(all), len(allBase)) {
		if all[i] > 0 && allBase[i] > 0 {
			v, base = append(v, all[i]), append(base, allBase[i])
		}
	}
	r := result{Name: name, Unit: unit, Baseline: "rxe", Value: round(stat.Median(v)),
		BaselineValue: round(stat.Median(base))}
	ratios := stat.Ratios(v, base)
	r.Ratio, r.Spread, r.Rounds = round(stat.Median(ratios)), round(stat.Spread(ratios)), len(ratios)
	if len(ratios) > 0 {
		r.RatioMin, r.RatioMax = round(slices.Min(ratios)), round(slices.Max(ratios))
	}
	r.Verdict = r.verdict()
	return r
}

// results compares gorxe, and perftest under gorxe run, with rxe.
func (c *comparison) results() []result {
	list := []result{}
	for _, s := range []*side{&gorxeSide, &runSide} {
		for i := range figures {
			list = append(list, c.compare(s, &figures[i])...)
		}
	}
	return list
}

// compare compares a side with rxe.
func (c *comparison) compare(s *side, f *figure) (list []result) {
	column := func(s *side, of func(t, short *trial) float64) (v []float64) {
		series := c.trials[key{f.name, s.name}]
		for k := 1; k < len(series); k++ {
			v = append(v, of(&series[k], &series[0]))
		}
		return v
	}
	row := func(name, unit string, of func(t, short *trial) float64) result {
		return compare(s.prefix+name, unit, column(s, of), column(&rxeSide, of))
	}
	r := row(f.name, f.unit, func(t, _ *trial) float64 { return t.value })
	if r.less = f.latency; f.latency {
		p99 := func(t, _ *trial) float64 { return t.p99 }
		r.P99 = round(stat.Median(column(s, p99)))
		r.BaselineP99 = round(stat.Median(column(&rxeSide, p99)))
	}
	r.Verdict = r.verdict()
	list = append(list, r)
	if u := f.cpu; u.name != "" {
		r := row(u.name, u.unit, func(t, short *trial) float64 { return u.cost(f, t, short) })
		r.less = true
		r.Verdict = r.verdict()
		list = append(list, r)
	}
	return list
}

// How far rounds may differ for a verdict, and how many are required.
const (
	maxSpread = 0.3
	minRounds = 3
)

// verdict reports whether gorxe is better than rxe, or why that is unknown. Rounds that differ much
// but all point in the same direction show which side is ahead, not by how much.
func (r *result) verdict() string {
	is := "behind"
	if (r.Ratio > 1) != r.less {
		is = "ahead"
	}
	switch {
	case r.Rounds < minRounds:
		return fmt.Sprintf("unknown: %d rounds were long enough, %d are required (-duration, -rounds)", r.Rounds, minRounds)
	case r.Spread <= maxSpread:
		return is
	case r.RatioMin > 1 || r.RatioMax < 1:
		return is + " in every round, by an uncertain factor"
	}
	return "uncertain: the rounds differ too much (use a quieter host or -rounds)"
}

// round keeps 4 decimals.
func round(f float64) float64 { return math.Round(f*1e4) / 1e4 }

func writeJSON(w io.Writer, list []result) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(list)
}

// notes explain the columns.
const notes = `
ratio is the median of gorxe / rxe over the rounds; spread is how unsure it is (up to 5 rounds (max-min)/median, then a 95 % confidence
interval): above 30 % it is no measure. run_: perftest under gorxe run, beside the same programs on rxe. Latency is half of a round trip, the median. CPU is what both emulators took of the host, without what a program takes to start; gorxe spins.
`

func writeTable(w io.Writer, list []result) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "figure\tunit\tbetter\tgorxe\trxe\tratio\tof rounds\tspread\tgorxe is")
	for i := range list {
		r := &list[i]
		better, more := "more", ""
		if r.less {
			better = "less"
		}
		if r.P99 > 0 {
			more = fmt.Sprintf(", p99 %.1f / %.1f", r.P99, r.BaselineP99)
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%.3f\t%.3f\t%.2f\t%.2f-%.2f\t%.0f%%\t%s%s\n",
			r.Name, r.Unit, better, r.Value, r.BaselineValue, r.Ratio, r.RatioMin, r.RatioMax,
			r.Spread*100, r.Verdict, more)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	_, err := io.WriteString(w, notes)
	return err
}
