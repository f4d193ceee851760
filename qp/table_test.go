package qp

import (
	"testing"

	"github.com/gorxe/gorxe/bth"
	"pgregory.net/rapid"
)

// The QP table against a map, with QPNs from a small range so that they collide, and all over the
// 24 bits.
func TestTableAgainstMap(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		var table qpTable
		table.init(1 << 16)
		model := map[bth.QPN]*QP{}
		qpns := rapid.OneOf(rapid.Uint32Range(0, 40), rapid.Uint32Range(0, psnMask),
			rapid.Map(rapid.Uint32Range(0, 40), func(n uint32) uint32 { return n << 18 }))
		for range rapid.IntRange(1, 300).Draw(r, "steps") {
			n := bth.QPN(qpns.Draw(r, "qpn"))
			if _, there := model[n]; !there && rapid.Bool().Draw(r, "put") {
				q := &QP{qpn: n}
				table.put(q)
				model[n] = q
			} else {
				table.del(n)
				delete(model, n)
			}
			if table.used != len(model) {
				r.Fatalf("%d used, want %d", table.used, len(model))
			}
			for n, q := range model {
				if table.get(n) != q {
					r.Fatalf("QPN %#x is lost", n)
				}
			}
			if m := bth.QPN(qpns.Draw(r, "other")); table.get(m) != model[m] {
				r.Fatalf("QPN %#x found, or not, against the map", m)
			}
		}
	})
}

// Probes stay short: at most a third of the slots is taken, whatever QPNs are in use.
func TestTableStaysSparse(t *testing.T) {
	var table qpTable
	table.init(1 << 16)
	for i := range 10_000 {
		table.put(&QP{qpn: bth.QPN(i*3 + 2)})
	}
	longest := 0
	for n := range bth.QPN(100_000) {
		i, d := table.home(n), 0
		for table.slots[i].q != nil && table.slots[i].qpn != n {
			i = (i + 1) & (len(table.slots) - 1)
			d++
		}
		longest = max(longest, d)
	}
	if len(table.slots) < 3*table.used || longest > 16 {
		t.Errorf("%d QPs in %d slots, longest probe %d", table.used, len(table.slots), longest)
	}
}

// freeQPN draws until it has one that is free and not reserved.
func TestQPNsAreFree(t *testing.T) {
	w := newWorld(t, 1)
	e := w.ends[0]
	draws := []uint64{0, 1, psnMask, 5, 5, 1 << 24, 6}
	e.rand = func() uint64 { d := draws[0]; draws = draws[1:]; return d }
	for _, want := range []bth.QPN{5, 6} {
		q, err := e.CreateQP(InitAttr{PD: e.pd, SendCQ: e.cq, RecvCQ: e.cq})
		must(t, err)
		if q.QPN() != want {
			t.Errorf("drew QPN %d, want %d", q.QPN(), want)
		}
	}
}
