package scale

import (
	"fmt"
	"slices"

	"github.com/gorxe/gorxe/roce"
)

// Order is the order in which a lane uses its QPs or MRs.
type Order string

// The orders.
const (
	RoundRobin Order = "rr"
	Random     Order = "random"
)

// Limits of Config.
const (
	MaxCount  = 1 << 16          // QPs, and MRs
	MaxWindow = roce.MaxPrefetch // of prefetching
	MaxBurst  = sendDepth
)

const (
	nameQPs = "rate_64B_qps"
	nameMRs = "rate_64B_mrs"

	unitRate = "Mmsg/s"
	msgSize  = 64 // bytes

	// baseCount is the number of QPs or MRs of the baseline: enough for each message to use
	// another one, few enough for the first-level caches.
	baseCount = 64
	// mrQPs is the number of QPs of the lanes that vary the number of MRs.
	mrQPs = 64
)

// lane is one measurement of a round.
type lane struct {
	name     string
	qps, mrs int
	order    Order
	prefetch int // window; 0 means off
}

func (l *lane) String() string {
	return fmt.Sprintf("%s %d QPs, %d MRs, %s, window %d", l.name, l.qps, l.mrs, l.order,
		l.prefetch)
}

// baseline returns the name of the baseline in the output.
func (l *lane) baseline() string {
	if l.name == nameMRs {
		return fmt.Sprintf("%d MRs", baseCount)
	}
	return fmt.Sprintf("%d QPs", baseCount)
}

// base returns the baseline of l, which differs only in the count.
func (l *lane) base() lane {
	b := *l
	if l.name == nameMRs {
		b.mrs = baseCount
	} else {
		b.qps = baseCount
	}
	return b
}

// plan returns the lanes of a round, including all baselines.
func plan(c *Config) []lane {
	var list []lane
	for _, w := range c.Windows {
		for _, o := range c.Orders {
			for _, n := range withBase(c.QPs) {
				list = append(list, lane{nameQPs, n, 1, o, w})
			}
			for _, n := range withBase(c.MRs) {
				list = append(list, lane{nameMRs, mrQPs, n, o, w})
			}
		}
	}
	return list
}

func withBase(list []int) []int {
	if len(list) == 0 {
		return nil
	}
	list = append(slices.Clone(list), baseCount)
	slices.Sort(list)
	return slices.Compact(list)
}
