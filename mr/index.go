package mr

import (
	"fmt"
	"math/bits"
	"sync/atomic"
)

const (
	// bucketSize keys and their regions fill a cache line.
	bucketSize = 5
	// perBucket is how many keys there are for each bucket at most before the table doubles.
	perBucket = 4
	// minBuckets is the size that a table starts with.
	minBuckets = 8
)

// index finds the MR of a key. A key is pseudo-random, so its low bits are
// its hash: they name the bucket where it is. And since the table chooses the keys, it passes over those whose
// bucket is full. So a look-up reads one line, whatever the key, a removed
// key leaves nothing behind, and nothing is ever moved under a reader's feet.
type index struct {
	cur  atomic.Pointer[buckets]
	used int // keys in cur

	perm permutation
	next uint64 // counter of the next key; 1<<32 when all are gone
}

// buckets is a table: a power of two of them.
type buckets []bucket

// bucket is a line. A key's place is published by
// its number last and withdrawn by its number first, so a reader that finds
// the number finds the MR, or none, or (the place was reused in between)
// another one, whose own key tells.
type bucket struct {
	keys [bucketSize]atomic.Uint32 // 0: free
	mrs  [bucketSize]atomic.Pointer[MR]
}

func (x *index) init(rand func() uint64) {
	x.perm.init(rand)
	x.cur.Store(newBuckets(minBuckets))
}

func newBuckets(n int) *buckets {
	b := make(buckets, n)
	return &b
}

// of is the key's bucket.
func (b buckets) of(key Key) *bucket { return &b[uint32(key)&uint32(len(b)-1)] }

// places is how many keys would fill the table.
func (b buckets) capacity() int { return len(b) * bucketSize }

// find returns the MR at key's place or nil. The MR may be dead already, and
// if the place was reused while find looked, it is another: the caller
// compares its key.
func (x *index) find(key Key) *MR {
	b := (*x.cur.Load()).of(key)
	if i := b.indexOf(key); i < bucketSize {
		return b.mrs[i].Load() // nil for key 0, which free places hold
	}
	return nil
}

// place is the first that holds key, bucketSize or more if there is none; that of 0 is free. It looks at all of them: a branch for each
// would be foretold wrong most of the time, and that costs more.
func (b *bucket) indexOf(key Key) int {
	k := &b.keys
	return bits.TrailingZeros8(equalBit(&k[0], key) | equalBit(&k[1], key)<<1 | equalBit(&k[2], key)<<2 | equalBit(&k[3], key)<<3 | equalBit(&k[4], key)<<4)
}

// same is 1 if key is there, else 0.
func equalBit(at *atomic.Uint32, key Key) uint8 {
	return uint8((uint64(at.Load()^uint32(key)) - 1) >> 63)
}

// has tells whether key is there.
func (b *bucket) has(key Key) bool { return b.indexOf(key) < bucketSize }

// draw takes the next key of the sequence that has room here and is not live
// in the other index. A fifth of the table at least is free, so few are passed over.
func (x *index) draw(other *index) (Key, error) {
	if x.used >= perBucket*len(*x.cur.Load()) {
		x.grow()
	}
	for b, o := *x.cur.Load(), *other.cur.Load(); x.next < 1<<32; {
		key := x.perm.at(uint32(x.next))
		x.next++
		if key != 0 && b.of(key).has(0) && !o.of(key).has(key) {
			return key, nil
		}
	}
	return 0, fmt.Errorf("after %d keys: %w", x.next, ErrExhausted)
}

func (x *index) insert(key Key, m *MR) {
	x.cur.Load().put(key, m)
	x.used++
}

func (b buckets) put(key Key, m *MR) {
	t := b.of(key)
	i := t.indexOf(0)
	t.mrs[i].Store(m)
	t.keys[i].Store(uint32(key))
}

func (x *index) remove(key Key) {
	b := (*x.cur.Load()).of(key)
	i := b.indexOf(key)
	b.keys[i].Store(0)
	b.mrs[i].Store(nil)
	x.used--
}

// grow doubles the table. A bucket's keys spread over two, so all find room.
// Readers go on in the old table until they see the new one; an MR that dies
// meanwhile says so itself (MR.live).
func (x *index) grow() {
	old := *x.cur.Load()
	b := newBuckets(2 * len(old))
	for i := range old {
		for j := range old[i].keys {
			if k := Key(old[i].keys[j].Load()); k != 0 {
				b.put(k, old[i].mrs[j].Load())
			}
		}
	}
	x.cur.Store(b)
}
