package syncbuf

import (
	"fmt"
	"strings"
	"sync"
	"testing"
)

func TestBuffer(t *testing.T) {
	for limit, want := range map[int]string{0: "ab, cd", 3: "ab,", 6: "ab, cd"} {
		b := Buffer{Limit: limit}
		for _, text := range []string{"ab", ", ", "cd"} {
			if n, err := fmt.Fprint(&b, text); n != len(text) || err != nil {
				t.Errorf("limit %d: Write() = %d, %v, want %d", limit, n, err, len(text))
			}
		}
		if got := b.String(); got != want {
			t.Errorf("limit %d: String() = %q, want %q", limit, got, want)
		}
	}
}

// The race detector checks this test.
func TestConcurrent(t *testing.T) {
	var b Buffer
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 100 {
				fmt.Fprint(&b, "x")
				_ = b.String()
			}
		})
	}
	wg.Wait()
	if got := b.String(); got != strings.Repeat("x", 400) {
		t.Errorf("%d bytes, want 400", len(got))
	}
}
