package stat

import (
	"math"
	"slices"
	"testing"
)

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		v    []float64
		want float64
	}{
		{nil, 0}, {[]float64{3}, 3}, {[]float64{9, 1, 2}, 2}, {[]float64{4, 1, 3, 2}, 2.5},
		{[]float64{1, 1e9, 2, 3, 2}, 2},
	} {
		in := slices.Clone(c.v)
		if got := Median(c.v); got != c.want {
			t.Errorf("Median(%v) = %v, want %v", in, got, c.want)
		}
		if !slices.Equal(in, c.v) {
			t.Errorf("Median() changed its input %v to %v", in, c.v)
		}
	}
}

func TestSpread(t *testing.T) {
	for _, c := range []struct {
		v    []float64
		want float64
	}{
		{nil, 0}, {[]float64{5}, 0}, {[]float64{2, 2, 2}, 0}, {[]float64{8, 10, 12}, 0.4},
		{[]float64{0, 0}, 0},
		{[]float64{12, 8, 10, 9, 11, 10}, 0.4},                        // six values: all of them
		{[]float64{1, 99, 12, 8, 10, 9, 11, 10, 10}, 0.4},             // nine: without the extremes
		{[]float64{1, 1, 1e9, 99, 8, 12, 9, 11, 10, 10, 10, 10}, 0.4}, // twelve
	} {
		if got := Spread(c.v); math.Abs(got-c.want) > 1e-12 {
			t.Errorf("Spread(%v) = %v, want %v", c.v, got, c.want)
		}
	}
}

// The ranks agree with published tables: of 20 values the 6th and the 15th, of 100 the 40th and the
// 61st.
func TestOutliers(t *testing.T) {
	for n, want := range map[int]int{0: 0, 1: 0, 5: 0, 8: 0, 9: 1, 11: 1, 12: 2, 15: 3, 20: 5,
		25: 7, 30: 9, 100: 39, 1000: 468} {
		if k := outliers(n); k != want {
			t.Errorf("outliers(%d) = %d, want %d", n, k, want)
		}
	}
}

func TestRatios(t *testing.T) {
	got := Ratios([]float64{1, 2, 3, 4}, []float64{2, 0, 3})
	if want := []float64{0.5, 1}; !slices.Equal(got, want) {
		t.Errorf("Ratios() = %v, want %v", got, want)
	}
}
