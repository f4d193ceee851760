package roce

import (
	"errors"
	"testing"

	"github.com/gorxe/gorxe/loopback"
)

func TestLinkRateIsChecked(t *testing.T) {
	for _, c := range []struct {
		rate int64
		want error
	}{{MinLinkRate, nil}, {1e9, nil}, {MaxLinkRate, nil},
		{0, ErrInvalid}, {-1, ErrInvalid}, {MinLinkRate - 1, ErrInvalid}, {MaxLinkRate + 1, ErrInvalid}} {
		link, err := loopback.NewLink(loopback.Config{})
		must(t, err)
		d, err := New(link.Port(0), WithLinkRate(c.rate), WithBacklogLimit(NoBacklogLimit))
		if !errors.Is(err, c.want) {
			t.Errorf("WithLinkRate(%d): %v, want %v", c.rate, err, c.want)
		}
		if err == nil {
			must(t, d.Close())
		}
	}
}
