package guard

import (
	"net/netip"
	"testing"
)

// One prefix gets half of the slots, further ones share the rest, and all slots become free again.
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
	}{{"10.0.0.1", 4}, {"2001:db8::1", 2}, {"2001:db8::2", 0}, {"10.0.0.3", 1}, {"10.0.0.1", 0},
		{"10.0.0.4", 1}, {"10.0.0.5", 0}} {
		if got := takeAll(c.peer); got != c.want {
			t.Errorf("%s got %d slots, want %d", c.peer, got, c.want)
		}
	}
	for _, release := range taken {
		release()
		release()
	}
	if _, used := l.used.Used(netip.Addr{}); used != 0 {
		t.Errorf("%d slots are in use after all were released", used)
	}
}
