package uverbs

import (
	"math/bits"
	"sync/atomic"
	"unsafe"
)

// Layout of a ring of the rxe provider: a header, then the elements. Producer and consumer indices
// lie in cache lines of their own and are stored masked. A ring with n slots holds n-1 elements.
const (
	ringHeader   = 384
	ringLogSize  = 0
	ringMask     = 4
	ringProducer = 128
	ringConsumer = 256

	minElement = 64 // bytes
)

// ring is a ring in memory that is shared with the program. The program may change everything in it
// at any time. Sizes and the own index are therefore kept here.
type ring struct {
	part  part
	elem  uint32 // bytes of a slot
	mask  uint32 // slots - 1
	index uint32 // own index: the consumer's, or the producer's of a CQ
}

// newRing creates a ring for at least depth elements of at least elem bytes.
func newRing(f *file, depth, elem int) (*ring, error) {
	logSize := bits.Len(uint(max(elem, minElement) - 1))
	slots := 1 << bits.Len(uint(max(depth, 1)))
	p, err := f.alloc(ringHeader + slots<<logSize)
	if err != nil {
		return nil, err
	}
	r := &ring{part: p, elem: 1 << logSize, mask: uint32(slots - 1)}
	r.word(ringLogSize).Store(uint32(logSize))
	r.word(ringMask).Store(r.mask)
	return r, nil
}

func (r *ring) word(at int) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(&r.part.mem[at]))
}

// depth returns the number of elements that the ring holds.
func (r *ring) depth() int { return int(r.mask) }

// slot returns the memory of a slot.
func (r *ring) slot(i uint32) []byte {
	at := ringHeader + int(i&r.mask)*int(r.elem)
	return r.part.mem[at : at+int(r.elem) : at+int(r.elem)]
}

// producer returns the program's index.
func (r *ring) producer() uint32 { return r.word(ringProducer).Load() }

// waiting returns the number of elements that the program has produced.
func (r *ring) waiting() uint32 { return (r.word(ringProducer).Load() - r.index) & r.mask }

// full reports whether a CQ has no free slot.
func (r *ring) full() bool { return (r.word(ringConsumer).Load()-r.index-1)&r.mask == 0 }

// produced publishes the element at the own index.
func (r *ring) produced() {
	r.index = (r.index + 1) & r.mask
	r.word(ringProducer).Store(r.index)
}

// setConsumer publishes how far the ring was consumed.
func (r *ring) setConsumer(i uint32) { r.word(ringConsumer).Store(i & r.mask) }

// reset empties the ring.
func (r *ring) reset() {
	r.index = 0
	r.word(ringProducer).Store(0)
	r.word(ringConsumer).Store(0)
}

// size returns the bytes that the program maps.
func (r *ring) size() uint32 { return uint32(len(r.part.mem)) }

// move copies the elements of a CQ that the program has not polled to an empty ring. It returns
// false if they do not fit.
func (r *ring) move(to *ring) bool {
	first := r.word(ringConsumer).Load()
	n := (r.index - first) & r.mask
	if n > to.mask {
		return false
	}
	for i := range n {
		copy(to.slot(to.index), r.slot(first+i))
		to.produced()
	}
	return true
}

// moveWaiting copies the elements that the program has produced, and that were not consumed, to an
// empty ring. It returns false if they do not fit.
func (r *ring) moveWaiting(to *ring) bool {
	n := r.waiting()
	if n > to.mask {
		return false
	}
	for i := range n {
		copy(to.slot(i), r.slot(r.index+i))
	}
	to.word(ringProducer).Store(n)
	return true
}
