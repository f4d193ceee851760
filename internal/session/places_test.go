package session

import (
	"net/netip"
	"testing"
)

// One greedy peer ends with half of the places, several with a part each, and a newcomer finds one; all come back.
func TestPlacesAreShared(t *testing.T) {
	p := NewPlaces(8)
	var taken []func()
	greedy := func(peer string) (n int) {
		for {
			release, ok := p.Take(netip.MustParseAddr(peer))
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
	}{{"10.0.0.1", 4}, {"10.0.0.2", 2}, {"10.0.0.3", 1}, {"10.0.0.1", 0}, {"10.0.0.4", 1}, {"10.0.0.5", 0}} {
		if got := greedy(c.peer); got != c.want {
			t.Errorf("%s gets %d places, want %d", c.peer, got, c.want)
		}
	}
	for _, release := range taken {
		release()
		release()
	}
	if p.free != 8 || len(p.held) != 0 {
		t.Errorf("%d places are free, %d peers hold some", p.free, len(p.held))
	}
}
