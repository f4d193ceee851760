package copyflags

import "testing"

// Names and texts of a peer cannot control the terminal.
func TestName(t *testing.T) {
	for text, want := range map[string]string{
		"a b/ü": "a b/ü", "": `""`, "a\nb": `"a\nb"`, "\x1b[31m": `"\x1b[31m"`, "\xff": `"\xff"`,
		"a\u202eb": `"a\u202eb"`,
	} {
		if got := Name(text); got != want {
			t.Errorf("Name(%q) = %s, want %s", text, got, want)
		}
	}
}

func TestUnits(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1536: "1.5 KiB",
		200 << 20: "200 MiB",
		1 << 62:   "4.0 EiB"} {
		if got := Bytes(n); got != want {
			t.Errorf("Bytes(%d) = %q, want %q", n, got, want)
		}
	}
	if got := Rate(1e9, 4) + ", " + Rate(1e6, 1) + ", " +
		Rate(1, 0); got != "2 Gb/s, 8 Mb/s, 0 Mb/s" {
		t.Errorf("Rate() = %s", got)
	}
}

// The runtime collects the garbage before it is much more than maxGarbage, whatever the pool.
func TestGarbagePercent(t *testing.T) {
	for pool, want := range map[int64]int{minPool: 100, 64 << 20: 11, 1 << 30: 1, 1 << 36: 1} {
		if got := garbagePercent(pool); got != want {
			t.Errorf("garbagePercent(%d) = %d, want %d", pool, got, want)
		}
	}
}
