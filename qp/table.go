package qp

import (
	"math/bits"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/internal/prefetch"
)

// qpTable finds a QP by its QPN in constant time. A bucket is a cache line, and the engine, which draws the QPNs, passes over those
// whose bucket is full: so a look-up reads one line. Only beside QPNs that a user chose so that their bucket overflows do some lie
// behind their own, and look-ups there go along the user's chain.
type qpTable struct {
	buckets []qpBucket
	shift   uint8
	used    int
	max     int
}

type qpBucket struct {
	qpns    [bucketSize]bth.QPN // 0: free; no QP here has that number, which is the subnet manager's
	spilled uint32              // QPNs that would be here, or before, and lie behind
	qps     [bucketSize]*QP
}

const (
	bucketSize = 5
	minBuckets = 16 // the table grows with the QPs
	// perBucket is how many QPs there are for each bucket at most before the table doubles.
	perBucket = 4
)

func (t *qpTable) init(maxQP int) {
	t.max = maxQP
	t.resize(minBuckets)
}

func (t *qpTable) resize(n int) {
	old := t.buckets
	t.buckets, t.used = make([]qpBucket, n), 0
	t.shift = uint8(32 - bits.TrailingZeros(uint(n)))
	for i := range old {
		for _, q := range old[i].qps {
			if q != nil {
				t.put(q)
			}
		}
	}
}

// home spreads QPNs by multiplication with 2^32 over the golden ratio.
func (t *qpTable) home(n bth.QPN) int { return int(uint32(n) * 0x9e3779b1 >> t.shift) }

// bucket is the one i behind n's own.
func (t *qpTable) bucket(n bth.QPN, i int) *qpBucket {
	return &t.buckets[(t.home(n)+i)&(len(t.buckets)-1)]
}

// place is the first where n lies, bucketSize or more if there is none. It looks at all of them: a branch for each would be foretold
// wrong most of the time, and that costs more.
func (b *qpBucket) slotOf(n bth.QPN) int {
	k := &b.qpns
	return bits.TrailingZeros8(equalBit(k[0], n) | equalBit(k[1], n)<<1 | equalBit(k[2], n)<<2 | equalBit(k[3], n)<<3 | equalBit(k[4], n)<<4)
}

// same is 1 if a is b, else 0.
func equalBit(a, b bth.QPN) uint8 { return uint8((uint64(a^b) - 1) >> 63) }

// get is the QP with this number, or nil.
func (t *qpTable) get(n bth.QPN) *QP {
	b := t.bucket(n, 0)
	if at := b.slotOf(n); at < bucketSize {
		return b.qps[at]
	}
	if b.spilled > 0 {
		if b, at, _ := t.find(n); b != nil {
			return b.qps[at]
		}
	}
	return nil
}

// find is the bucket of n and its place there, and how far behind its own bucket that is; nil: n is not in the table.
func (t *qpTable) find(n bth.QPN) (b *qpBucket, at, behind int) {
	for behind = range t.buckets {
		b = t.bucket(n, behind)
		if at = b.slotOf(n); at < bucketSize && b.qps[at] != nil {
			return b, at, behind
		}
		if b.spilled == 0 {
			break
		}
	}
	return nil, 0, 0
}

// room tells whether there is room for n in its own bucket.
func (t *qpTable) hasSpace(n bth.QPN) bool { return t.bucket(n, 0).slotOf(0) < bucketSize }

// ahead fetches the bucket of n.
func (t *qpTable) prefetch(n bth.QPN) { prefetch.Object(t.bucket(n, 0), 1) }

// put takes a QP in. There is room: a fifth of the places at least is free.
func (t *qpTable) put(q *QP) {
	if t.used >= perBucket*len(t.buckets) {
		t.resize(2 * len(t.buckets))
	}
	for i := 0; ; i++ {
		b := t.bucket(q.qpn, i)
		if at := b.slotOf(0); at < bucketSize {
			b.qpns[at], b.qps[at] = q.qpn, q
			t.used++
			return
		}
		b.spilled++
	}
}

// del takes the QP with this number out, if there is one.
func (t *qpTable) del(n bth.QPN) {
	b, at, behind := t.find(n)
	if b == nil {
		return
	}
	b.qpns[at], b.qps[at] = 0, nil
	t.used--
	for i := range behind {
		t.bucket(n, i).spilled--
	}
}
