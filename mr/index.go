package mr

import (
	"fmt"
	"sync/atomic"
)

const (
	// bucketSize keys and their regions fill a cache line.
	bucketSize = 5
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
func (b buckets) places() int { return len(b) * bucketSize }

// find returns the MR at key's place or nil. The MR may be dead already, and
// if the place was reused while find looked, it is another: the caller
// compares its key.
func (x *index) find(key Key) *MR {
	b := (*x.cur.Load()).of(key)
	if i := b.place(key); i >= 0 {
		return b.mrs[i].Load()
	}
	return nil
}

// place is where key is, or -1.
func (b *bucket) place(key Key) int {
	if key == 0 {
		return -1 // free places hold 0
	}
	return b.look(uint32(key))
}

// free is a place where a key may go, or -1.
func (b *bucket) free() int { return b.look(0) }

// look finds the first place that holds want.
func (b *bucket) look(want uint32) int {
	for i := range b.keys {
		if b.keys[i].Load() == want {
			return i
		}
	}
	return -1
}

// draw takes the next key of the sequence that has room here and is not live
// in the other index. Tables are at most half full, so few are passed over.
func (x *index) draw(other *index) (Key, error) {
	if x.used >= x.cur.Load().places()/2 {
		x.grow()
	}
	for b, o := *x.cur.Load(), *other.cur.Load(); x.next < 1<<32; {
		key := x.perm.at(uint32(x.next))
		x.next++
		if key != 0 && b.of(key).free() >= 0 && o.of(key).place(key) < 0 {
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
	i := t.free()
	t.mrs[i].Store(m)
	t.keys[i].Store(uint32(key))
}

func (x *index) remove(key Key) {
	b := (*x.cur.Load()).of(key)
	i := b.place(key)
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
