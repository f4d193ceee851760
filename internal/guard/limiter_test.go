package guard

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/gorxe/gorxe/internal/guard"
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

// Sessions of one prefix cannot use the whole memory, whatever their sizes are.
func TestBudgetIsShared(t *testing.T) {
	b := NewBudget(1024)
	var taken []func()
	for _, c := range []struct {
		peer string
		n    int64
		want bool
	}{
		{"2001:db8::1", 513, false}, {"2001:db8::1", 512, true}, {"2001:db8::2", 512, false},
		{"10.0.0.1", 512, false}, {"10.0.0.1", 256, true}, {"10.0.0.2", 128, true},
	} {
		release, err := b.Take(netip.MustParseAddr(c.peer), c.n)
		if (err == nil) != c.want {
			t.Errorf("Take(%s, %d) = %v", c.peer, c.n, err)
		}
		if err != nil && !errors.Is(err, guard.ErrBusy) {
			t.Errorf("Take(%s, %d) = %v, want ErrBusy", c.peer, c.n, err)
		}
		if err == nil {
			taken = append(taken, release)
		}
	}
	if got := b.Used(); got != 896 {
		t.Errorf("Used() = %d, want 896", got)
	}
	for _, release := range taken {
		release()
		release()
	}
	if got := b.Used(); got != 0 {
		t.Errorf("Used() = %d after all were released", got)
	}
}
