package bth

import "testing"

func TestPSNWrap(t *testing.T) {
	last := PSN(1<<24 - 1)
	if last.Next() != 0 || PSN(0).Prev() != last || last.Add(3) != 2 {
		t.Error("PSNs count modulo 2^24")
	}
	for _, c := range []struct {
		p, q PSN
		want int32
	}{
		{0, last, 1}, {last, 0, -1}, {5, 5, 0}, {0, 1 << 23, -1 << 23}, {1 << 23, 0, -1 << 23}, {1<<23 - 1, 0, 1<<23 - 1},
	} {
		if got := c.p.Sub(c.q); got != c.want {
			t.Errorf("%v - %v = %d, want %d", c.p, c.q, got, c.want)
		}
	}
}
