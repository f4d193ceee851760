// Package stat is what benchmarks of several rounds have in common: medians, ratios of one round each, and how far rounds differ.
package stat

import "slices"

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

// Spread is (max-min)/median: 0 if all are equal, or if the median is 0.
func Spread(v []float64) float64 {
	m := Median(v)
	if m == 0 {
		return 0
	}
	return (slices.Max(v) - slices.Min(v)) / m
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
