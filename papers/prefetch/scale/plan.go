package scale

import (
	"fmt"
	"slices"

	"github.com/gorxe/gorxe/qp"
)

// order is how a lane goes through its QPs or MRs.
type order string

const (
	roundRobin order = "rr"
	random     order = "random"
)

const (
	nameQPs = "rate_64B_qps"
	nameMRs = "rate_64B_mrs"

	unitRate = "Mmsg/s"
	msgSize  = 64 // bytes

	// baseCount is how many QPs or MRs the baseline has: enough that each message goes elsewhere, few enough for the
	// nearest caches.
	baseCount = 64
	// MaxCount bounds QPs and MRs of a run.
	maxCount = 1 << 16
	// mrQPs is how many QPs the lanes have that vary MRs.
	mrQPs = 64
	// maxWindow bounds a prefetch window.
	maxWindow = qp.MaxPrefetch
)

// lane is one measurement of a round.
type lane struct {
	name     string
	qps, mrs int
	order    order
	prefetch int // window; 0: off
}

func (l *lane) String() string {
	return fmt.Sprintf("%s %d QPs, %d MRs, %s, window %d", l.name, l.qps, l.mrs, l.order, l.prefetch)
}

// baseline is the name that scripts know it by.
func (l *lane) baseline() string {
	if l.name == nameMRs {
		return fmt.Sprintf("%d MRs", baseCount)
	}
	return fmt.Sprintf("%d QPs", baseCount)
}

// base is the lane that l is set against: everything is the same but the count.
func (l *lane) base() lane {
	b := *l
	if l.name == nameMRs {
		b.mrs = baseCount
	} else {
		b.qps = baseCount
	}
	return b
}

// plan lists the lanes of a round. The baselines are always among them.
func plan(qps, mrs []int, orders []order, windows []int) []lane {
	var list []lane
	for _, w := range windows {
		for _, o := range orders {
			for _, n := range withBase(qps) {
				list = append(list, lane{nameQPs, n, 1, o, w})
			}
			for _, n := range withBase(mrs) {
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
