package mr

import (
	"fmt"
	"sync/atomic"
)

const (
	// bucketSize keys share a bucket, half a cache line.
	bucketSize = 8
	// minBuckets is the size that a table starts with.
	minBuckets = 8
)

// index finds the MR of a key. A key is pseudo-random, so its low bits are
// its hash: they name its home, and the other places of the home's bucket
// are those where it may be instead. And since the table chooses the keys, it passes over those whose
// bucket is full. So a look-up reads one bucket, whatever the key, a removed
// key leaves nothing behind, and nothing is ever moved under a reader's feet.
type index struct {
	cur  atomic.Pointer[buckets]
	used int // keys in cur

	perm permutation
	next uint64 // counter of the next key; 1<<32 when all are gone
}

// buckets is a power-of-two number of buckets. A key's place is published by
// its number last and withdrawn by its number first, so a reader that finds
// the number finds the MR, or none, or (the place was reused in between)
// another one, whose own key tells.
type buckets struct {
	mask uint32 // number of places - 1
	keys []atomic.Uint32
	mrs  []atomic.Pointer[MR]
}

func newBuckets(n int) *buckets {
	return &buckets{
		mask: uint32(n*bucketSize - 1),
		keys: make([]atomic.Uint32, n*bucketSize),
		mrs:  make([]atomic.Pointer[MR], n*bucketSize),
	}
}

func (x *index) init(rand func() uint64) {
	x.perm.init(rand)
	x.cur.Store(newBuckets(minBuckets))
}

// find returns the MR at key's place or nil. The MR may be dead already, and
// if the place was reused while find looked, it is another: the caller
// compares its key.
func (x *index) find(key Key) *MR {
	b := x.cur.Load()
	if i := b.place(key); i >= 0 {
		return b.mrs[i].Load()
	}
	return nil
}

// place is where key is, or -1.
func (b *buckets) place(key Key) int {
	if key == 0 {
		return -1 // free places hold 0
	}
	return b.look(key, uint32(key))
}

// free is a place where key may go, or -1.
func (b *buckets) free(key Key) int { return b.look(key, 0) }

// look finds the place in key's bucket that holds want, its home first.
func (b *buckets) look(key Key, want uint32) int {
	home := uint32(key) & b.mask
	keys := (*[bucketSize]atomic.Uint32)(b.keys[home&^(bucketSize-1):])
	for i := range uint32(bucketSize) {
		if at := (home + i) % bucketSize; keys[at].Load() == want {
			return int(home&^(bucketSize-1) + at)
		}
	}
	return -1
}

// draw takes the next key of the sequence that has room here and is not live
// in the other index. Tables are at most half full, so few are passed over.
func (x *index) draw(other *index) (Key, error) {
	if x.used >= len(x.cur.Load().keys)/2 {
		x.grow()
	}
	for b := x.cur.Load(); x.next < 1<<32; {
		key := x.perm.at(uint32(x.next))
		x.next++
		if key != 0 && b.free(key) >= 0 && other.cur.Load().place(key) < 0 {
			return key, nil
		}
	}
	return 0, fmt.Errorf("after %d keys: %w", x.next, ErrExhausted)
}

func (x *index) insert(key Key, m *MR) {
	x.cur.Load().put(key, m)
	x.used++
}

func (b *buckets) put(key Key, m *MR) {
	i := b.free(key)
	b.mrs[i].Store(m)
	b.keys[i].Store(uint32(key))
}

func (x *index) remove(key Key) {
	b := x.cur.Load()
	i := b.place(key)
	b.keys[i].Store(0)
	b.mrs[i].Store(nil)
	x.used--
}

// grow doubles the table. A bucket's keys spread over two, so all find room.
// Readers go on in the old table until they see the new one; an MR that dies
// meanwhile says so itself (MR.live).
func (x *index) grow() {
	old := x.cur.Load()
	b := newBuckets(2 * len(old.keys) / bucketSize)
	for i := range old.keys {
		if k := Key(old.keys[i].Load()); k != 0 {
			b.put(k, old.mrs[i].Load())
		}
	}
	x.cur.Store(b)
}
