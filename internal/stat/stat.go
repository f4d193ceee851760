// Package stat is what benchmarks of several rounds have in common: medians, ratios of one round each, and how far rounds differ.
package stat

import (
	"math"
	"slices"
)

// Median is the middle value, or the mean of the two in the middle; 0 of nothing. It leaves v alone.
func Median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(v))
	m := len(s) / 2
	if len(s)%2 == 1 {
		return s[m]
	}
	return (s[m-1] + s[m]) / 2
}

// sure is how sure Spread wants to be that the true median lies where it says.
const sure = 0.95

// Spread is how far v leaves its median in doubt, as a share of it: the width of the narrowest interval between two of the values, as
// many from the lower end as from the upper, that contains the true median with a probability of 95 %, whatever the values'
// distribution. With 5 values or fewer no interval is that sure, and it is (max-min)/median. 0 if all are equal, or if the median is 0.
//
// Half of what is measured is above the true median, so how many of n values are below it is a binomial matter
// (Conover, Practical Nonparametric Statistics, confidence interval for a quantile).
func Spread(v []float64) float64 {
	m := Median(v)
	if m == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(v))
	k := outliers(len(s))
	return (s[len(s)-1-k] - s[k]) / m
}

// outliers is how many of n values Spread leaves out at either end; n is at most 1000, beyond 2^-n is no float64.
func outliers(n int) (k int) {
	exactly := math.Ldexp(1, -n) // k values are below the median
	atMost := exactly
	for ; k < (n-1)/2; k++ {
		exactly *= float64(n-k) / float64(k+1)
		if atMost += exactly; 2*atMost > 1-sure {
			break
		}
	}
	return k
}

// Ratios divides pairwise, round by round. Rounds without a baseline value are left out.
func Ratios(v, base []float64) []float64 {
	r := make([]float64, 0, len(v))
	for i := range min(len(v), len(base)) {
		if base[i] != 0 {
			r = append(r, v[i]/base[i])
		}
	}
	return r
}
