package qp

import (
	"math/bits"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/mr/prefetch"
)

// qpTable finds a QP by its QPN in constant time: open addressing over slots at least three times as many as
// QPs, so that probes stay short whatever QPNs a peer tries.
type qpTable struct {
	slots []qpSlot
	shift uint8
	used  int
	max   int
}

type qpSlot struct {
	qpn bth.QPN
	q   *QP
}

const minTable = 64 // slots; the table grows with the QPs

func (t *qpTable) init(maxQP int) {
	t.max = maxQP
	t.resize(minTable)
}

func (t *qpTable) resize(n int) {
	old := t.slots
	t.slots = make([]qpSlot, n)
	t.shift = uint8(32 - bits.TrailingZeros(uint(n)))
	for _, s := range old {
		if s.q != nil {
			t.slots[t.find(s.qpn)] = s
		}
	}
}

// home spreads QPNs by multiplication with 2^32 over the golden ratio.
func (t *qpTable) home(n bth.QPN) int { return int(uint32(n) * 0x9e3779b1 >> t.shift) }

// find is the slot of n, or the free one where it belongs.
func (t *qpTable) find(n bth.QPN) int {
	i := t.home(n)
	for t.slots[i].q != nil && t.slots[i].qpn != n {
		i = (i + 1) & (len(t.slots) - 1)
	}
	return i
}

func (t *qpTable) get(n bth.QPN) *QP { return t.slots[t.find(n)].q }

// ahead fetches the slot of n.
func (t *qpTable) ahead(n bth.QPN) { prefetch.Object(&t.slots[t.home(n)], 1) }

func (t *qpTable) put(q *QP) {
	if (t.used+1)*3 > len(t.slots) {
		t.resize(len(t.slots) * 2)
	}
	t.slots[t.find(q.qpn)] = qpSlot{q.qpn, q}
	t.used++
}

// del closes the gap, so that no marker of the deleted stays behind.
func (t *qpTable) del(n bth.QPN) {
	i := t.find(n)
	if t.slots[i].q == nil {
		return
	}
	mask := len(t.slots) - 1
	t.slots[i] = qpSlot{}
	t.used--
	for j := (i + 1) & mask; t.slots[j].q != nil; j = (j + 1) & mask {
		// An entry moves into the gap if the gap lies between its home and its place.
		if home := t.home(t.slots[j].qpn); (j-home)&mask >= (j-i)&mask {
			t.slots[i], t.slots[j] = t.slots[j], qpSlot{}
			i = j
		}
	}
}
