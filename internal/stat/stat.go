// Package stat summarizes measurements of several rounds: medians, ratios between rounds and
// spread.
package stat

import (
	"math"
	"slices"
)

// Median returns the middle value of v, or the mean of the two in the middle; 0 if v is empty. It
// does not change v.
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

// confidence is the probability that the true median is in the interval of Spread.
const confidence = 0.95

// Spread returns the width of the 95 % confidence interval of the median, divided by the median.
// The interval lies between two of the values and is symmetric in their ranks. It is valid for any
// distribution: the number of values below the true median has a binomial distribution (Conover,
// Practical Nonparametric Statistics, confidence interval for a quantile). With 5 values or fewer
// no such interval exists, and Spread returns (max-min)/median. It returns 0 if the median is 0.
func Spread(v []float64) float64 {
	m := Median(v)
	if m == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(v))
	k := outliers(len(s))
	return (s[len(s)-1-k] - s[k]) / m
}

// outliers returns how many of n values are outside the interval of Spread on each side. n is at
// most 1000, because 2^-n must be a float64.
func outliers(n int) (k int) {
	exactly := math.Ldexp(1, -n) // probability that k values are below the median
	atMost := exactly
	for ; k < (n-1)/2; k++ {
		exactly *= float64(n-k) / float64(k+1)
		if atMost += exactly; 2*atMost > 1-confidence {
			break
		}
	}
	return k
}

// Ratios returns v[i]/base[i] for each round i. It omits rounds whose baseline is 0 or missing.
func Ratios(v, base []float64) []float64 {
	r := make([]float64, 0, len(v))
	for i := range min(len(v), len(base)) {
		if base[i] != 0 {
			r = append(r, v[i]/base[i])
		}
	}
	return r
}
