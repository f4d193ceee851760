package due

import (
	"math/rand/v2"
	"slices"
	"testing"
)

type item struct {
	at   int64
	slot int
}

func (i *item) Due() int64 { return i.at }
func (i *item) Slot() *int { return &i.slot }

// First is the item with the earliest time after any sequence of changes.
func TestQueue(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var q Queue[*item]
	items := make([]*item, 50)
	for i := range items {
		items[i] = new(item)
	}
	queued := map[*item]bool{}
	for range 20000 {
		x := items[rng.IntN(len(items))]
		if rng.IntN(3) == 0 {
			q.Remove(x)
			delete(queued, x)
		} else {
			x.at = rng.Int64N(100)
			q.Set(x)
			queued[x] = true
		}
		var times []int64
		for x := range queued {
			times = append(times, x.at)
		}
		if q.Len() != len(times) {
			t.Fatalf("Len() = %d, want %d", q.Len(), len(times))
		}
		if len(times) > 0 && q.First().at != slices.Min(times) {
			t.Fatalf("First() is due at %d, want %d", q.First().at, slices.Min(times))
		}
	}
}
