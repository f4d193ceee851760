package qp

import (
	"math/bits"

	"github.com/gorxe/gorxe/bth"
)

// DefaultReorderMemory is the default of Config.MaxReorderMemory in bytes.
const DefaultReorderMemory = 64 << 20

// reorderPool is the memory of an engine for packets that are held after gaps. A QP may take half
// as much as is left: one alone gets a third of the limit, the next one a third of the rest, and so
// on. Memory that is given back is kept for the next gap, unless buffers of another size are
// needed.
type reorderPool struct {
	limit  int // bytes
	used   int // by QPs
	cached int // given back

	// given back
	states  []*reorder
	rings   [maxRingBits + 1][]psnRing // by size
	packets [len(parkedSizes)]struct {
		first *parkedPacket
		n     int
	}
}

// parkedPacket is a packet that waits for its predecessors.
type parkedPacket struct {
	next  *parkedPacket // in the list of free ones
	b     []byte        // from the BTH to the pad in b[:n]
	n     uint16
	class uint8
}

// parkedSizes are the sizes of buffers for parked packets: for short messages, and for each path
// MTU with headers.
var parkedSizes = [...]int{64, 128, 256 + 64, 512 + 64, 1024 + 64, 2048 + 64, 4096 + 64}

// parkedOverhead approximates the memory in bytes of a parkedPacket besides its buffer.
const parkedOverhead = 48

// psnRing records packets by PSN. Its size is a power of 2.
type psnRing struct {
	mask   uint64
	bitmap []uint64        // bit psn&63 of word psn&mask/64
	parked []*parkedPacket // at psn&mask; nil: not held, or the data is in memory
}

const (
	minRingBits = 8
	maxRingBits = 17 // reorderSpan
)

func ringBytes(size int) int { return size/8 + size*8 }

// holds reports whether the packet is held. It must be within the ring.
func (r *psnRing) holds(psn uint64) bool {
	i := psn & r.mask
	return r.bitmap[i/64]>>(i%64)&1 != 0
}

func (r *psnRing) set(psn uint64) {
	i := psn & r.mask
	r.bitmap[i/64] |= 1 << (i % 64)
}

// bits returns 32 packets from psn on, the first one in the most significant bit.
func (r *psnRing) bits(psn uint64) uint32 {
	i := psn & r.mask
	w := r.bitmap[i/64] >> (i % 64)
	if s := i % 64; s > 32 {
		w |= r.bitmap[(i/64+1)&(r.mask/64)] << (64 - s)
	}
	return bits.Reverse32(uint32(w))
}

// Approximate sizes in bytes.
const (
	reorderBytes = 256 // of a reorder
	extentBytes  = 48
)

// size returns the memory of the state without what it holds.
func (r *reorder) size() int { return reorderBytes + cap(r.extents)*extentBytes }

// take returns the state for a QP, without memory for packets. It is nil if there is no memory.
func (e *reorderPool) take() *reorder {
	var r *reorder
	n := len(e.states)
	if n > 0 {
		r = e.states[n-1]
	} else {
		r = new(reorder)
	}
	if !e.charge(r, r.size()) {
		return nil
	}
	if e.reuse(r.size(), n > 0); n > 0 {
		e.states = e.states[:n-1]
	}
	if !e.reach(r, 0) {
		e.giveState(r)
		return nil
	}
	return r
}

// give takes back the state of a QP and everything that it holds.
func (e *reorderPool) give(r *reorder) {
	r.discard(e, r.top)
	e.giveRing(r, r.psnRing)
	e.giveState(r)
}

func (e *reorderPool) giveState(r *reorder) {
	e.refund(r, r.size())
	*r = reorder{placement: placement{extents: r.extents[:0]}}
	e.states = append(e.states, r)
}

// growExtents makes space for another extent. It reports false if there is no memory.
func (e *reorderPool) growExtents(r *reorder) bool {
	old := cap(r.extents)
	more := max(8, old)
	if !e.charge(r, more*extentBytes) {
		return false
	}
	e.reuse(more*extentBytes, false)
	r.extents = append(make([]extent, 0, old+more), r.extents...)
	return true
}

// The pool keeps idleReorderMemory bytes, and more only for reorderIdle after the last gap. If it
// did not wait, a peer could make the engine allocate memory again and again.
const (
	idleReorderMemory      = 1 << 20
	reorderIdle       Time = 1_000_000_000 // ns
)

// trim releases memory if there has been no gap for a while.
func (e *reorderPool) trim(sinceGap Time) {
	if sinceGap >= reorderIdle {
		e.evict(e.cached - idleReorderMemory)
	}
}

// charge takes n bytes for a QP if its share and the limit allow it.
func (e *reorderPool) charge(r *reorder, n int) bool {
	if left := e.limit - e.used - n; 2*(r.bytes+n) > left {
		return false
	}
	r.bytes += n
	e.used += n
	return true
}

func (e *reorderPool) refund(r *reorder, n int) {
	r.bytes -= n
	e.used -= n
	e.cached += n
}

// reuse takes n bytes that have been charged from the memory that was given back, or makes space
// for new memory.
func (e *reorderPool) reuse(n int, found bool) {
	if found {
		e.cached -= n
	} else {
		e.evict(e.used + e.cached - e.limit)
	}
}

// evict leaves n bytes that were given back, or a little more, to the garbage collector.
func (e *reorderPool) evict(n int) {
	for i := len(e.rings) - 1; i >= minRingBits && n > 0; i-- {
		list := &e.rings[i]
		for size := ringBytes(1 << i); len(*list) > 0 && n > 0; n -= size {
			last := len(*list) - 1
			(*list)[last] = psnRing{}
			*list = (*list)[:last]
			e.cached -= size
		}
	}
	for i := len(e.packets) - 1; i >= 0 && n > 0; i-- {
		list, size := &e.packets[i], parkedSizes[i]+parkedOverhead
		for ; list.n > 0 && n > 0; n -= size {
			list.first = list.first.next
			list.n--
			e.cached -= size
		}
	}
	for ; len(e.states) > 0 && n > 0; e.states = e.states[:len(e.states)-1] {
		r := e.states[len(e.states)-1]
		e.states[len(e.states)-1] = nil
		e.cached -= r.size()
		n -= r.size()
	}
}

// reach makes the ring large enough for a packet at this distance from the expected one.
func (e *reorderPool) reach(r *reorder, distance uint64) bool {
	if r.bitmap != nil && distance <= r.mask {
		return true
	}
	n := max(bits.Len64(distance), minRingBits)
	size := 1 << n
	if !e.charge(r, ringBytes(size)) {
		return false
	}
	var next psnRing
	k := len(e.rings[n])
	e.reuse(ringBytes(size), k > 0)
	if k > 0 {
		next, e.rings[n] = e.rings[n][k-1], e.rings[n][:k-1]
	} else {
		next = psnRing{mask: uint64(size - 1), bitmap: make([]uint64, size/64),
			parked: make([]*parkedPacket, size)}
	}
	old := r.psnRing
	for psn := r.from; psn < r.top; psn++ {
		if !old.holds(psn) {
			continue
		}
		next.set(psn)
		i := psn & old.mask
		next.parked[psn&next.mask], old.parked[i] = old.parked[i], nil
	}
	r.psnRing = next
	if old.bitmap != nil {
		clear(old.bitmap)
		e.giveRing(r, old)
	}
	return true
}

// giveRing takes back a ring, which must be empty.
func (e *reorderPool) giveRing(r *reorder, old psnRing) {
	e.refund(r, ringBytes(len(old.parked)))
	n := bits.Len64(old.mask)
	e.rings[n] = append(e.rings[n], old)
}

// park copies a packet. It reports false if there is no memory.
func (e *reorderPool) park(r *reorder, psn uint64, p *bth.Packet) bool {
	class := 0
	for parkedSizes[class] < len(p.BTH) {
		if class++; class == len(parkedSizes) {
			return false // longer than any valid packet
		}
	}
	size := parkedSizes[class]
	if !e.charge(r, size+parkedOverhead) {
		return false
	}
	list := &e.packets[class]
	h := list.first
	e.reuse(size+parkedOverhead, h != nil)
	if h != nil {
		list.first = h.next
		list.n--
	} else {
		h = &parkedPacket{b: make([]byte, size), class: uint8(class)}
	}
	h.next, h.n = nil, uint16(copy(h.b, p.BTH))
	r.parked[psn&r.mask] = h
	return true
}

// drop forgets a held packet.
func (r *reorder) drop(e *reorderPool, psn uint64) {
	i := psn & r.mask
	r.bitmap[i/64] &^= 1 << (i % 64)
	r.held--
	if h := r.parked[i]; h != nil {
		r.parked[i] = nil
		list := &e.packets[h.class]
		h.next, list.first = list.first, h
		list.n++
		e.refund(r, parkedSizes[h.class]+parkedOverhead)
	}
}

// discard forgets the held packets before psn.
func (r *reorder) discard(e *reorderPool, psn uint64) {
	for end := min(psn, r.top); r.from < end; {
		i := r.from & r.mask
		w := r.bitmap[i/64] >> (i % 64)
		if w == 0 {
			r.from += 64 - i%64
			continue
		}
		if r.from += uint64(bits.TrailingZeros64(w)); r.from < end {
			r.drop(e, r.from)
		}
	}
	r.from = psn
}
