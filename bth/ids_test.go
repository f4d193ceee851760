package bth

import (
	"testing"

	"pgregory.net/rapid"
)

// IBA 9.7.2: PSNs count modulo 2^24. Half of the circle precedes a PSN, the other half follows it.
func TestPSNWrap(t *testing.T) {
	last := PSN(1<<24 - 1)
	if last.Next() != 0 || PSN(0).Prev() != last || last.Add(3) != 2 {
		t.Error("PSN arithmetic does not wrap at 2^24")
	}
	for _, c := range []struct {
		p, q PSN
		want int32
	}{
		{0, last, 1}, {last, 0, -1}, {5, 5, 0}, {0, 1 << 23, -1 << 23}, {1 << 23, 0, -1 << 23},
		{1<<23 - 1, 0, 1<<23 - 1},
	} {
		if got := c.p.Sub(c.q); got != c.want {
			t.Errorf("%v - %v = %d, want %d", c.p, c.q, got, c.want)
		}
	}
}

func TestPSNProperties(t *testing.T) {
	psn := rapid.Uint32Range(0, mask24)
	rapid.Check(t, func(t *rapid.T) {
		p := PSN(psn.Draw(t, "p"))
		n := rapid.Uint32Range(0, 1<<23-1).Draw(t, "n")
		q := p.Add(n)
		if q > mask24 {
			t.Fatalf("%v + %d = %#x, which exceeds 24 bits", p, n, uint32(q))
		}
		if got := q.Sub(p); got != int32(n) {
			t.Fatalf("(%v + %d) - %v = %d", p, n, p, got)
		}
		if got := p.Sub(q); got != -int32(n) {
			t.Fatalf("%v - (%v + %d) = %d", p, p, n, got)
		}
		if p.Before(q) != (n > 0) || q.After(p) != (n > 0) || q.Before(p) || p.After(q) {
			t.Fatalf("Before or After is wrong for %v and %v", p, q)
		}
		if p.Next() != p.Add(1) || p.Next().Prev() != p {
			t.Fatalf("Next or Prev is wrong for %v", p)
		}
	})
}

func TestMSNWraps(t *testing.T) {
	if m := MSN(1<<24 - 1).Next(); m != 0 {
		t.Errorf("MSN after the last = %d, want 0", m)
	}
}

// IBA 10.9.3: the same partition, and at least one side a full member.
func TestPKeyMatches(t *testing.T) {
	for _, c := range []struct {
		p, q PKey
		want bool
	}{
		{0xffff, 0xffff, true}, {0xffff, 0x7fff, true}, {0x7fff, 0xffff, true},
		{0x7fff, 0x7fff, false}, {0xffff, 0x8001, false},
	} {
		if got := c.p.Matches(c.q); got != c.want {
			t.Errorf("PKey(%#x).Matches(%#x) = %v, want %v", c.p, c.q, got, c.want)
		}
	}
}

func TestStringsOfIDs(t *testing.T) {
	if s := PSN(0xab).String(); s != "0x0000ab" {
		t.Errorf("PSN.String() = %s", s)
	}
	if s := QPNMulticast.String(); s != "0xffffff" {
		t.Errorf("QPN.String() = %s", s)
	}
}
