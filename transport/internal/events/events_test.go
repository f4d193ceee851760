package events

import (
	"slices"
	"testing"
)

func TestOrder(t *testing.T) {
	var q Queue[int64]
	var got []int
	for i, at := range []int64{30, 10, 20, 10, 10, 5} {
		q.Add(at, func() { got = append(got, i) })
	}
	last := int64(0)
	for q.Len() > 0 {
		if at := q.Next(); at < last {
			t.Errorf("Next() = %d after %d", at, last)
		} else {
			last = at
		}
		q.Take()()
	}
	if want := []int{5, 1, 3, 4, 2, 0}; !slices.Equal(got, want) {
		t.Errorf("events in the order %v, want %v", got, want)
	}
}
