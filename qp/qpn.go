package qp

import (
	"fmt"

	"github.com/gorxe/gorxe/bth"
)

// QPNRange is the range of the QPNs that an engine uses. The zero value is all QPNs.
type QPNRange struct{ First, Last bth.QPN }

const (
	// rangeSpare is the share of a limited range that stays free, so that few draws find a free
	// QPN: one in 128.
	rangeSpare = 128
	// bucketTries is the number of draws after which a QPN may be in a full bucket of the table,
	// because a limited range may have no other.
	bucketTries = 256
)

// fill sets the default and checks the range.
func (r *QPNRange) fill() error {
	if *r == (QPNRange{}) {
		r.Last = bth.QPNMulticast
	}
	if r.Last > bth.QPNMulticast || r.Last < r.First || r.size() < rangeSpare {
		return fmt.Errorf("qp: QPNs %v to %v, want at least %d up to %v", r.First, r.Last,
			rangeSpare, bth.QPNMulticast)
	}
	return nil
}

func (r *QPNRange) size() int { return int(r.Last-r.First) + 1 }

// limit returns the number of QPs that fit in the range, at most n.
func (r *QPNRange) limit(n int) int {
	if r.size() > psnMask {
		return n
	}
	return min(n, r.size()-r.size()/rangeSpare)
}

// usable reports whether a QP may have QPN n: it is in the range and not reserved for management (0
// and 1) or multicast.
func (r *QPNRange) usable(n bth.QPN) bool {
	return n >= max(r.First, bth.QPNGSI+1) && n <= min(r.Last, bth.QPNMulticast-1)
}

// freeQPN draws a QPN that is usable, not used, and has space in its bucket. At least a fifth of
// the table's slots are free.
func (e *Engine) freeQPN() bth.QPN {
	for tries := 0; ; tries++ {
		n := e.qpns.First + bth.QPN(e.rand()%uint64(e.qpns.size()))
		if e.qpns.usable(n) && e.table.get(n) == nil &&
			(tries >= bucketTries || e.table.hasSpace(n)) {
			return n
		}
	}
}
