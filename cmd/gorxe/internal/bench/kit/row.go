package kit

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/gorxe/gorxe/cmd/gorxe/internal/cli"
	"github.com/gorxe/gorxe/cmd/gorxe/stat"
)

// Row is what the rows of every benchmark's JSON begin with: something measured against a baseline.
type Row struct {
	Name          string  `json:"name"`
	Value         float64 `json:"value"` // median over the rounds
	Unit          string  `json:"unit"`
	Baseline      string  `json:"baseline"`
	BaselineValue float64 `json:"baseline_value"` // median over the rounds
	Ratio         float64 `json:"ratio"`          // value/baseline_value; 0 if the baseline is 0
	Spread        float64 `json:"spread"`         // (max-min)/median of the ratio of the single rounds
}

// digits is to how many decimals results are rounded.
const digits = 4

// Round rounds a result.
func Round(f float64) float64 { return cli.Round(f, digits) }

// Compare makes a Row of one value a round of either side.
func Compare(name, unit, baseline string, values, base []float64) Row {
	r := Row{
		Name: name, Unit: unit, Baseline: baseline, Value: Round(stat.Median(values)), BaselineValue: Round(stat.Median(base)),
		Spread: Round(stat.Spread(stat.Ratios(values, base))),
	}
	if r.BaselineValue != 0 {
		r.Ratio = Round(r.Value / r.BaselineValue)
	}
	return r
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
