package qp

import (
	"testing"

	"github.com/gorxe/gorxe/bth"
	"pgregory.net/rapid"
)

// The QP table against a map, with QPNs from a small range so that they collide, from all 24 bits,
// and with QPNs that a user chose to overflow a few buckets.
func TestTableAgainstMap(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		var table qpTable
		table.init(1 << 16)
		model := map[bth.QPN]*QP{}
		qpns := rapid.OneOf(rapid.Uint32Range(0, 40), rapid.Uint32Range(0, psnMask),
			rapid.Map(rapid.Uint32Range(0, 40), func(n uint32) uint32 { return n << 18 }),
			rapid.SampledFrom(alike))
		for range rapid.IntRange(1, 300).Draw(r, "steps") {
			n := bth.QPN(qpns.Draw(r, "qpn"))
			if _, there := model[n]; n != 0 && !there && rapid.Bool().Draw(r, "put") {
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
					r.Fatalf("QPN %#x not found", n)
				}
			}
			if m := bth.QPN(qpns.Draw(r, "other")); table.get(m) != model[m] {
				r.Fatalf("QPN %#x: table and map differ", m)
			}
		}
	})
}

// alike are QPNs that belong to one bucket even of a large table: those with the smallest hashes.
var alike = func() (list []uint32) {
	var table qpTable
	table.init(1 << 16)
	table.resize(1 << 16)
	for n := bth.QPN(1); n < psnMask; n++ {
		if table.home(n) == 3 {
			list = append(list, uint32(n))
		}
	}
	return list[:100]
}()

// A lookup reads one line for a QPN that the engine drew. If a user chooses a hundred QPNs of one
// bucket, only lookups of these take longer. The size of the table depends on the number of QPs
// only.
func TestTableIsCompact(t *testing.T) {
	e := newWorld(t, 1).ends[0]
	for range 10_000 {
		_, err := e.CreateQP(InitAttr{PD: e.pd, SendCQ: e.cq, RecvCQ: e.cq})
		must(t, err)
	}
	for i := range e.table.buckets {
		if e.table.buckets[i].spilled > 0 {
			t.Fatal("a QPN that the engine drew is not in its own bucket")
		}
	}
	if got, want := len(e.table.buckets), 4096; got != want {
		t.Errorf("10,000 QPs are in %d buckets, want %d", got, want)
	}
	var table qpTable
	table.init(1 << 16)
	for _, n := range alike {
		table.put(&QP{qpn: bth.QPN(n)})
	}
	for _, n := range alike {
		if q := table.get(bth.QPN(n)); q == nil || q.qpn != bth.QPN(n) {
			t.Errorf("QPN %#x not found", n)
		}
	}
	if got, want := len(table.buckets), 32; got != want {
		t.Errorf("%d QPNs made the table %d buckets large, want %d", len(alike), got, want)
	}
}

// Destroyed QPs leave nothing behind, neither in their own bucket nor in others.
func TestTableRemovesAll(t *testing.T) {
	var table qpTable
	table.init(1 << 16)
	some := alike[:30] // more than their bucket holds, less than would double the table
	for _, n := range some {
		table.put(&QP{qpn: bth.QPN(n)})
	}
	if table.buckets[0].spilled == 0 || len(table.buckets) != minBuckets {
		t.Fatalf("no bucket overflowed: %+v", table.buckets[0])
	}
	for _, n := range some {
		table.del(bth.QPN(n))
	}
	for i, b := range table.buckets {
		if b != (qpBucket{}) {
			t.Fatalf("bucket %d holds %+v", i, b)
		}
	}
}

// freeQPN draws until it finds a QPN that is free and not reserved.
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
