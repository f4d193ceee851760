package kit

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/stat"
)

// Row is what the rows of every benchmark's JSON begin with: something measured against a baseline.
type Row struct {
	Name          string   `json:"name"`
	Value         float64  `json:"value"` // median over the rounds
	Unit          string   `json:"unit"`
	Baseline      string   `json:"baseline"`
	BaselineValue float64  `json:"baseline_value"` // median over the rounds
	Ratio         *float64 `json:"ratio"`          // median over the rounds of value/baseline_value; 0 without a baseline; null if the spread is too large
	Spread        float64  `json:"spread"`         // of the ratio: see stat.Spread
}

// AboutRatio explains ratio and spread to people.
const AboutRatio = `ratio is the median of the single rounds' ratios, spread how wide the interval is in which the true median lies with 95 %
probability, as a share of it; with 5 rounds or fewer (max-min)/median.
`

// MaxSpread is the largest Spread with which a ratio says something.
const MaxSpread = 0.5

// digits is to how many decimals results are rounded.
const digits = 4

// Round rounds a result.
func Round(f float64) float64 { return cli.Round(f, digits) }

// Compare makes a Row of one value a round of either side.
func Compare(name, unit, baseline string, values, base []float64) Row {
	ratios := stat.Ratios(values, base)
	r := Row{
		Name: name, Unit: unit, Baseline: baseline, Value: Round(stat.Median(values)), BaselineValue: Round(stat.Median(base)),
		Spread: Round(stat.Spread(ratios)),
	}
	if r.Spread <= MaxSpread {
		ratio := Round(stat.Median(ratios))
		r.Ratio = &ratio
	}
	return r
}

// RatioText is the ratio for people: a dash if there is none.
func (r *Row) RatioText(decimals int) string {
	if r.Ratio == nil {
		return "-"
	}
	return strconv.FormatFloat(*r.Ratio, 'f', decimals, 64)
}

// WarnScattered says how many rows have no ratio, if there are such, and how far their rounds scatter.
func WarnScattered[T any](w io.Writer, list []T, row func(*T) *Row) {
	n, worst := 0, 0.0
	for i := range list {
		if r := row(&list[i]); r.Ratio == nil {
			n++
			worst = max(worst, r.Spread)
		}
	}
	if n > 0 {
		fmt.Fprintf(w, "No ratio for %s: the rounds scatter, and leave it unsure by up to %.0f %%, where %.0f %% is the limit. Let other programs finish, or give it more --rounds.\n",
			cli.Count(n, "result"), worst*100, MaxSpread*100)
	}
}

// Column takes one number out of every element.
func Column[T any](list []T, of func(*T) float64) []float64 {
	v := make([]float64, len(list))
	for i := range list {
		v[i] = of(&list[i])
	}
	return v
}

// Known refuses names that the user gave and that are not among those known; what says of what they are names.
func Known(what string, given, known []string) error {
	for _, name := range given {
		if !slices.Contains(known, name) {
			return cli.Usagef("there is no %s %q: choose from %s", what, name, strings.Join(known, ", "))
		}
	}
	return nil
}

// WarnStarved says that n of all measurements are not worth much, if there are such; who is the side that suffered.
func WarnStarved(w io.Writer, n, all int, who string) {
	if n > 0 {
		fmt.Fprintf(w, "In %d of %s %s got too little CPU time: other programs are at work here, so do not trust these figures.\n",
			n, cli.Count(all, "measurement"), who)
	}
}
