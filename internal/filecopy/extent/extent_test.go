package extent

import (
	"errors"
	"hash/crc32"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestCombine(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := rapid.SliceOfN(rapid.Byte(), 0, 2000).Draw(t, "a")
		b := rapid.SliceOfN(rapid.Byte(), 0, 2000).Draw(t, "b")
		want := crc32.Checksum(slices.Concat(a, b), table)
		if got := Combine(Sum(a), Sum(b), int64(len(b))); got != want {
			t.Fatalf("Combine() = %#x, want %#x", got, want)
		}
		if got := Append(Sum(a), b); got != want {
			t.Fatalf("Append() = %#x, want %#x", got, want)
		}
	})
}

func TestZeros(t *testing.T) {
	for _, n := range []int64{0, 1, 2, 31, 4096, 1<<20 + 7} {
		if got, want := Zeros(n), Sum(make([]byte, n)); got != want {
			t.Errorf("Zeros(%d) = %#x, want %#x", n, got, want)
		}
	}
	// A range that is too large to be summed: in two halves it must be the same.
	const huge = int64(1) << 50
	half := Zeros(huge / 2)
	if got, want := Zeros(huge), Combine(half, half, huge/2); got != want {
		t.Errorf("Zeros(%d) = %#x, want %#x", huge, got, want)
	}
}

// The CRC of a set of blocks is that of the file, in whatever order they were added.
func TestSetInAnyOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		size := rapid.IntRange(0, 5000).Draw(t, "size")
		file := make([]byte, size)
		var blocks []Extent
		for at := 0; at < size; {
			n := min(1+r.IntN(400), size-at)
			if r.IntN(4) > 0 { // otherwise a hole
				for i := range n {
					file[at+i] = byte(r.Uint32())
				}
				blocks = append(blocks, Extent{int64(at), int64(n), Sum(file[at : at+n])})
			}
			at += n
		}
		r.Shuffle(len(blocks), func(i, j int) { blocks[i], blocks[j] = blocks[j], blocks[i] })
		var s Set
		total := int64(0)
		for _, b := range blocks {
			if err := s.Add(b); err != nil {
				t.Fatal(err)
			}
			total += b.Length
			if err := s.Add(b); !errors.Is(err, ErrOverlap) {
				t.Fatalf("adding a block twice: %v, want ErrOverlap", err)
			}
		}
		if got, want := s.CRC(int64(size)), Sum(file); got != want {
			t.Fatalf("CRC() = %#x, want %#x", got, want)
		}
		if s.Bytes() != total {
			t.Fatalf("Bytes() = %d, want %d", s.Bytes(), total)
		}
		missing := int64(0)
		for _, m := range s.Missing(0, int64(size)) {
			missing += m.Length
			if err := s.Add(m); err != nil {
				t.Fatal(err)
			}
		}
		if missing != int64(size)-total || size > 0 && len(s.List()) != 1 {
			t.Fatalf("Missing() has %d bytes, want %d; then %v", missing, int64(size)-total, s.List())
		}
	})
}

func TestOverlaps(t *testing.T) {
	var s Set
	for _, e := range []Extent{{Offset: 100, Length: 50}, {Offset: 200, Length: 50}} {
		if err := s.Add(e); err != nil {
			t.Fatal(err)
		}
	}
	for _, e := range []Extent{{Offset: 90, Length: 11}, {Offset: 149, Length: 1},
		{Offset: 0, Length: 1000}, {Offset: 120, Length: 5}, {Offset: 150, Length: 51},
		{Offset: 249, Length: 2}} {
		if err := s.Add(e); !errors.Is(err, ErrOverlap) {
			t.Errorf("Add(%v) = %v, want ErrOverlap", e, err)
		}
	}
	if err := s.Add(Extent{Offset: 150, Length: 50}); err != nil || len(s.List()) != 1 {
		t.Errorf("Add() = %v, list %v, want one range", err, s.List())
	}
	if got := s.Missing(50, 300); len(got) != 2 || got[0].End() != 100 || got[1].Offset != 250 {
		t.Errorf("Missing() = %v", got)
	}
}

func BenchmarkCombine(b *testing.B) {
	crc := uint32(1)
	for b.Loop() {
		crc = Combine(crc, 0x12345678, 1<<20)
	}
	b.ReportMetric(float64(crc&1), "bit")
}
