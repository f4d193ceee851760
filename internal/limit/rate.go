package limit

import (
	"encoding/binary"
	"net/netip"
)

// A Budget is a rate in units per second, of which Burst units may be used at once. The unit is the
// caller's: packets, lookups, bytes. A Budget with PerSecond 0 is unlimited.
type Budget struct {
	PerSecond, Burst int64
}

// RateConfig configures a Rate.
type RateConfig struct {
	PerPrefix, Total Budget
	// Seed makes it unpredictable which prefixes share a bucket.
	Seed uint64
}

// buckets is the number of buckets of a Rate. Its memory is 8 bytes per bucket.
const buckets = 1024

// Rate limits events per second, per prefix and in total. Its memory is fixed: prefixes are hashed
// into buckets, and prefixes in the same bucket share its budget. Allow does not allocate.
type Rate struct {
	perPrefix, total pace
	seed             uint64
	bucket           [buckets]int64
	all              int64
}

// pace is a Budget in ns. A bucket is the time at which it is full again (the generic cell rate
// algorithm, ITU-T I.371): a unit moves it by interval, and it may be at most depth in the future.
type pace struct{ interval, depth int64 }

func newPace(b Budget) pace {
	if b.PerSecond <= 0 {
		return pace{}
	}
	interval := max(1, int64(1e9)/b.PerSecond)
	return pace{interval, interval * max(1, b.Burst)}
}

// NewRate returns a Rate whose budgets are full.
func NewRate(c RateConfig) *Rate {
	const past = -1 << 62 // before any time
	r := &Rate{perPrefix: newPace(c.PerPrefix), total: newPace(c.Total), seed: c.Seed, all: past}
	for i := range r.bucket {
		r.bucket[i] = past
	}
	return r
}

// Allow reports whether n units for a are within both budgets at the time now, in ns, and uses them
// if so. An event of more units than Burst is never allowed.
func (r *Rate) Allow(now int64, a netip.Addr, n int64) bool {
	b := &r.bucket[r.index(a)]
	one, ok := r.perPrefix.after(*b, now, n)
	if !ok {
		return false
	}
	all, ok := r.total.after(r.all, now, n)
	if !ok {
		return false
	}
	*b, r.all = one, all
	return true
}

// after returns the bucket after it gave n units.
func (p pace) after(bucket, now, n int64) (int64, bool) {
	if p.interval == 0 {
		return bucket, true
	}
	if n > p.depth/p.interval {
		return bucket, false
	}
	bucket = max(bucket, now) + n*p.interval
	return bucket, bucket-now <= p.depth
}

// index returns the bucket of a's prefix.
func (r *Rate) index(a netip.Addr) uint64 {
	raw := Prefix(a).Addr().As16()
	h := mix(r.seed ^ binary.BigEndian.Uint64(raw[:8]))
	return mix(h^binary.BigEndian.Uint64(raw[8:])) % buckets
}

// mix is a bijection in which each bit of the result depends on all bits of x (the finalizer of
// MurmurHash3).
func mix(x uint64) uint64 {
	x = (x ^ x>>33) * 0xff51afd7ed558ccd
	x = (x ^ x>>33) * 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}
