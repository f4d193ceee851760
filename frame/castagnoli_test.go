package frame

import (
	"fmt"
	"hash/crc32"
	"testing"
)

// Castagnoli agrees with hash/crc32 for all lengths and alignments, and long data.
func TestCastagnoli(t *testing.T) {
	buf := randomBytes(1<<16 + 64)
	check := func(at, n int) {
		t.Helper()
		want := crc32.Checksum(buf[at:at+n], crc32.MakeTable(crc32.Castagnoli))
		if got := Castagnoli(buf[at : at+n]); got != want {
			t.Errorf("Castagnoli of %d bytes at %d = %#x, want %#x", n, at, got, want)
		}
	}
	for n := range 3 * minFold {
		check(n%64, n)
	}
	for n := 1 << 16; n > 1<<16-300; n-- {
		check(n%61, n)
	}
}

func BenchmarkCastagnoli(b *testing.B) {
	table := crc32.MakeTable(crc32.Castagnoli)
	for _, n := range []int{512, 4096, 1 << 20} {
		buf := randomBytes(n)
		for name, sum := range map[string]func(){
			"stdlib": func() { crc32.Checksum(buf, table) },
			"fold":   func() { Castagnoli(buf) },
		} {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				b.SetBytes(int64(n))
				for b.Loop() {
					sum()
				}
			})
		}
	}
}
