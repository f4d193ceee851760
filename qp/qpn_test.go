package qp

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/mr"
)

// An engine with a range draws only QPNs of it, also when few are left, and refuses others.
func TestQPNRange(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2)).Uint64
	mrs, err := mr.NewTable(mr.Config{Rand: random})
	must(t, err)
	for _, r := range []QPNRange{{0, 1023}, {0x030000, 0x0303ff}, {0xfe0000, 0xfe0fff}} {
		e, err := NewEngine(Config{MRs: mrs, Rand: random, QPNs: r})
		must(t, err)
		pd, err := mrs.AllocPD()
		must(t, err)
		cq, err := NewCQ(1)
		must(t, err)
		seen := map[bth.QPN]bool{}
		limit := r.size() - r.size()/rangeSpare
		for range limit {
			q, err := e.CreateQP(InitAttr{PD: pd, SendCQ: cq, RecvCQ: cq})
			must(t, err)
			if n := q.QPN(); n < r.First || n > r.Last || n <= bth.QPNGSI || seen[n] {
				t.Fatalf("%v: drew QPN %v", r, n)
			}
			seen[q.QPN()] = true
		}
		_, err = e.CreateQP(InitAttr{PD: pd, SendCQ: cq, RecvCQ: cq})
		if !errors.Is(err, ErrTooManyQPs) {
			t.Errorf("%v: CreateQP() = %v with %d QPs, want ErrTooManyQPs", r, err, limit)
		}
	}
	for _, r := range []QPNRange{{5, 4}, {0, 10}, {0, 1 << 24}} {
		if _, err := NewEngine(Config{MRs: mrs, Rand: random, QPNs: r}); err == nil {
			t.Errorf("NewEngine accepts QPNs %v", r)
		}
	}
	e, err := NewEngine(Config{MRs: mrs, Rand: random, QPNs: QPNRange{0x010000, 0x01ffff}})
	must(t, err)
	pd, err := mrs.AllocPD()
	must(t, err)
	cq, err := NewCQ(1)
	must(t, err)
	for n, ok := range map[bth.QPN]bool{0x010000: true, 0x020000: false, 2: false} {
		_, err := e.CreateQP(InitAttr{PD: pd, SendCQ: cq, RecvCQ: cq, QPN: n})
		if ok != (err == nil) {
			t.Errorf("CreateQP() = %v for the chosen QPN %v", err, n)
		}
	}
}
