package kit

import (
	"fmt"
	"io"
	"strconv"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/stat"
)

// Row is one value compared with a baseline. The rows of every benchmark's JSON output begin with
// these fields.
type Row struct {
	Name          string  `json:"name"`
	Value         float64 `json:"value"` // median over the rounds
	Unit          string  `json:"unit"`
	Baseline      string  `json:"baseline"`
	BaselineValue float64 `json:"baseline_value"` // median over the rounds
	// Ratio is the median over the rounds of value/baseline_value. It is 0 without a baseline and
	// null if Spread exceeds MaxSpread.
	Ratio  *float64 `json:"ratio"`
	Spread float64  `json:"spread"` // of the ratio, as stat.Spread defines it
}

// AboutRatio explains the columns ratio and spread below a table.
const AboutRatio = `ratio is the median of the ratios of the single rounds. spread is the width of the interval that
contains the true median with a probability of 95 %, relative to the median; with 5 rounds or fewer
it is (max-min)/median.
`

// MaxSpread is the largest Spread for which a ratio is reported.
const MaxSpread = 0.5

// digits is the number of decimals to which results are rounded.
const digits = 4

// Round rounds a result for the output.
func Round(f float64) float64 { return cli.Round(f, digits) }

// Compare returns a Row for values and the baseline's values, one of each per round.
func Compare(name, unit, baseline string, values, base []float64) Row {
	ratios := stat.Ratios(values, base)
	r := Row{
		Name: name, Unit: unit, Baseline: baseline,
		Value: Round(stat.Median(values)), BaselineValue: Round(stat.Median(base)),
		Spread: Round(stat.Spread(ratios)),
	}
	if r.Spread <= MaxSpread {
		ratio := Round(stat.Median(ratios))
		r.Ratio = &ratio
	}
	return r
}

// RatioText returns the ratio for a table, or a dash if there is none.
func (r *Row) RatioText(decimals int) string {
	if r.Ratio == nil {
		return "-"
	}
	return strconv.FormatFloat(*r.Ratio, 'f', decimals, 64)
}

// TargetText returns a target, with the given number of decimals (-1: as many as it has), and
// whether it is missed. Both texts are empty without a target.
func TargetText(target *float64, atMost, missed bool, decimals int) (text, verdict string) {
	if target == nil {
		return "", ""
	}
	sign := map[bool]string{true: "<= ", false: ">= "}[atMost]
	return sign + strconv.FormatFloat(*target, 'f', decimals, 64),
		map[bool]string{true: "FAIL", false: "pass"}[missed]
}

// SpreadText returns the spread for a table.
func (r *Row) SpreadText() string { return fmt.Sprintf("%.0f%%", r.Spread*100) }

// WarnScattered warns if rows have no ratio because their rounds differ too much. row returns the
// Row in an element of list.
func WarnScattered[T any](w io.Writer, list []T, row func(*T) *Row) {
	n, worst := 0, 0.0
	for i := range list {
		if r := row(&list[i]); r.Ratio == nil {
			n++
			worst = max(worst, r.Spread)
		}
	}
	if n > 0 {
		fmt.Fprintf(w, "No ratio for %s: the rounds differ too much (spread up to %.0f %%, limit %.0f %%). "+
			"End other programs, or choose more --rounds.\n", cli.Count(n, "result"), worst*100,
			MaxSpread*100)
	}
}

// WarnStarved warns if n of all measurements are unreliable because side got too little CPU time.
func WarnStarved(w io.Writer, n, all int, side string) {
	if n > 0 {
		fmt.Fprintf(w, "In %d of %s %s got too little CPU time because other programs are running: "+
			"these figures are unreliable.\n", n, cli.Count(all, "measurement"), side)
	}
}

// Column returns one number of every element of list.
func Column[T any](list []T, of func(*T) float64) []float64 {
	v := make([]float64, len(list))
	for i := range list {
		v[i] = of(&list[i])
	}
	return v
}
