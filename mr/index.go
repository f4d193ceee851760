package mr

import (
	"fmt"
	"math/bits"
	"sync/atomic"
)

const (
	// bucketSize is the number of keys and regions that fit a cache line.
	bucketSize = 5
	// perBucket is the average number of keys per bucket at which the table doubles.
	perBucket = 4
	// minBuckets is the initial size of a table.
	minBuckets = 8
)

// index finds the MR of a key. Keys are pseudo-random, so their low bits are the number of their
// bucket. The table chooses the keys and skips those whose bucket is full. A lookup therefore reads
// one cache line, removed keys leave no markers, and entries never move while they are read.
type index struct {
	cur  atomic.Pointer[buckets]
	used int // keys in cur

	perm permutation
	next uint64 // counter of the next key; 1<<32 when all are used
}

// buckets is a table with a power of two of buckets.
type buckets []bucket

// bucket is one cache line. A slot is published by storing its key last, and removed by clearing
// its key first. A reader that finds the key gets the MR, nil, or another MR if the slot was reused
// meanwhile. It must compare the key of the MR.
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

// of returns the bucket of key.
func (b buckets) of(key Key) *bucket { return &b[uint32(key)&uint32(len(b)-1)] }

// capacity returns the number of slots.
func (b buckets) capacity() int { return len(b) * bucketSize }

// find returns the MR in the slot of key, or nil. The MR may have been deregistered, or the slot
// reused, so the caller must compare the key.
func (x *index) find(key Key) *MR {
	b := (*x.cur.Load()).of(key)
	if i := b.indexOf(key); i < bucketSize {
		return b.mrs[i].Load() // nil for key 0, which marks free slots
	}
	return nil
}

// indexOf returns the first slot with key, or at least bucketSize if there is none. Free slots have
// key 0. It compares all slots, because a branch for each would often be mispredicted.
func (b *bucket) indexOf(key Key) int {
	k := &b.keys
	return bits.TrailingZeros8(equalBit(&k[0], key) | equalBit(&k[1], key)<<1 | equalBit(&k[2],
		key)<<2 | equalBit(&k[3], key)<<3 | equalBit(&k[4], key)<<4)
}

// equalBit returns 1 if the slot has key, and 0 otherwise.
func equalBit(at *atomic.Uint32, key Key) uint8 {
	return uint8((uint64(at.Load()^uint32(key)) - 1) >> 63)
}

// has reports whether a slot has key.
func (b *bucket) has(key Key) bool { return b.indexOf(key) < bucketSize }

// draw returns the next key of the sequence whose bucket has a free slot and which is not live in
// the other index. At least a fifth of the slots are free, so it skips few keys.
func (x *index) draw(other *index) (Key, error) {
	x.reserve()
	for b, o := *x.cur.Load(), *other.cur.Load(); x.next < 1<<32; {
		key := x.perm.at(uint32(x.next))
		x.next++
		if key != 0 && b.of(key).has(0) && !o.of(key).has(key) {
			return key, nil
		}
	}
	return 0, fmt.Errorf("after %d keys: %w", x.next, ErrExhausted)
}

// reserve makes room for another key.
func (x *index) reserve() {
	if x.used >= perBucket*len(*x.cur.Load()) {
		x.grow()
	}
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

// grow doubles the table. Each bucket is split into two, so all keys fit. Readers use the old table
// until they see the new one; MR.live shows whether an MR is still valid.
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
