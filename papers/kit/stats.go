package kit

import "math"

// Mean returns the arithmetic mean of v, 0 if v is empty.
func Mean(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	sum := 0.0
	for _, x := range v {
		sum += x
	}
	return sum / float64(len(v))
}

// CV returns the coefficient of variation of v: standard deviation divided by mean. It returns 0 if
// the mean is 0.
func CV(v []float64) float64 {
	mean := Mean(v)
	if mean == 0 {
		return 0
	}
	sq := 0.0
	for _, x := range v {
		sq += (x - mean) * (x - mean)
	}
	return math.Sqrt(sq/float64(len(v))) / mean
}
