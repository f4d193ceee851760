package qp

import (
	"math/bits"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/internal/prefetch"
)

// qpTable finds a QP by its QPN in constant time. A bucket is one cache line. The engine never
// draws a QPN whose bucket is full, so a lookup reads one line. Only QPNs that a user chose can
// overflow a bucket. They are then stored in the following buckets.
type qpTable struct {
	buckets []qpBucket
	shift   uint8
	used    int
	max     int
}

type qpBucket struct {
	qpns    [bucketSize]bth.QPN // 0: free. No QP has QPN 0, which belongs to the subnet manager.
	spilled uint32              // QPNs of this or an earlier bucket that are stored in a later one
	qps     [bucketSize]*QP
}

const (
	bucketSize = 5
	minBuckets = 16 // initial size
	// perBucket is the average number of QPs per bucket at which the table doubles.
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

// home returns the QPN's own bucket, by multiplication with 2^32 divided by the golden ratio.
func (t *qpTable) home(n bth.QPN) int { return int(uint32(n) * 0x9e3779b1 >> t.shift) }

// bucket returns the bucket i after n's own.
func (t *qpTable) bucket(n bth.QPN, i int) *qpBucket {
	return &t.buckets[(t.home(n)+i)&(len(t.buckets)-1)]
}

// slotOf returns the first slot with n, or at least bucketSize if there is none. It compares all
// slots, because a branch for each would often be mispredicted.
func (b *qpBucket) slotOf(n bth.QPN) int {
	k := &b.qpns
	return bits.TrailingZeros8(equalBit(k[0], n) | equalBit(k[1], n)<<1 | equalBit(k[2],
		n)<<2 | equalBit(k[3], n)<<3 | equalBit(k[4], n)<<4)
}

// equalBit returns 1 if a == b, and 0 otherwise.
func equalBit(a, b bth.QPN) uint8 { return uint8((uint64(a^b) - 1) >> 63) }

// get returns the QP with this number, or nil.
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

// find returns the bucket of n, its slot there, and the distance from n's own bucket. b is nil if n
// is not in the table.
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

// hasSpace reports whether n's own bucket has a free slot.
func (t *qpTable) hasSpace(n bth.QPN) bool { return t.bucket(n, 0).slotOf(0) < bucketSize }

// prefetch brings the bucket of n into the cache.
func (t *qpTable) prefetch(n bth.QPN) { prefetch.Object(t.bucket(n, 0), 1) }

// put adds a QP. At least a fifth of the slots are free.
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

// del removes the QP with this number, if there is one.
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
