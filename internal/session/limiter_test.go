package session

import (
	"net/netip"
	"testing"
)

// One address gets half of the slots, further ones share the rest, and all slots become free again.
func TestLimiterDividesSlots(t *testing.T) {
	l := NewLimiter(8)
	var taken []func()
	takeAll := func(peer string) (n int) {
		for {
			release, ok := l.Take(netip.MustParseAddr(peer))
			if !ok {
				return n
			}
			taken = append(taken, release)
			n++
		}
	}
	for _, c := range []struct {
		peer string
		want int
	}{{"10.0.0.1", 4}, {"10.0.0.2", 2}, {"10.0.0.3", 1}, {"10.0.0.1", 0}, {"10.0.0.4", 1},
		{"10.0.0.5", 0}} {
		if got := takeAll(c.peer); got != c.want {
			t.Errorf("%s got %d slots, want %d", c.peer, got, c.want)
		}
	}
	for _, release := range taken {
		release()
		release()
	}
	if l.free != 8 || len(l.held) != 0 {
		t.Errorf("%d slots are free and %d peers hold some, want 8 and 0", l.free, len(l.held))
	}
}
