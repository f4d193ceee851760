package qp

import (
	"math/bits"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/mr"
)

// placement is what a responder knows about the memory of the messages after a gap. It decides
// whether the data of a packet may go to memory before its predecessors have arrived. The memory
// must end up as after in-order execution. So each earlier packet that is missing or parked must
// belong to a message whose memory is known, and must not write to the same bytes.
//
// Two kinds of earlier packets do not matter. A READ may return what later WRITEs wrote, unless the
// requester uses a fence (IBA 10.8.3.3). And a WRITE to the buffer of a receive that has not
// completed has no defined result.
type placement struct {
	extents []extent // in PSN order, without overlap; those before done have been executed
	done    int

	known uint64 // every packet before it has been executed, is held, or belongs to an extent
	// The first and the last held packet of which it is not known what it writes. Nothing after
	// unknownFirst is placed until unknownLast has been executed.
	unknownFirst, unknownLast uint64

	send uint64 // the packets through this one belong to the SEND in progress
}

// extent is the memory that a message writes. That of a READ is empty; a READ has an extent because
// its responses use PSNs.
type extent struct {
	first, end uint64 // packets
	addr       uint64 // in this process; 0 and size 0: none
	size       uint64 // bytes
	va         uint64 // WRITE of several packets: what its RETH says
	key        bth.RKey
	clear      bool // no message before it that is incomplete writes to its memory
}

// learn records the memory of the message in progress and of the message that p starts.
func (r *reorder) learn(q *QP, psn uint64, p *bth.Packet) {
	r.learnCurrent(q)
	info := p.Info
	switch {
	case info.HasInv: // it may end the access of later requests
		r.stopPlacing(psn)
		return
	case !info.Start, info.Op == bth.OpSend, info.Op == bth.OpFlush:
		return
	}
	x := extent{first: psn, end: psn + 1}
	var b []byte
	need, v := mr.RemoteWrite, accept
	switch info.Op {
	case bth.OpReadRequest:
		h := p.RETH()
		need = mr.RemoteRead
		x.end = psn + uint64(q.readPackets(h.DMALen()))
		_, v = q.checkRemote(h.RKey(), h.VA(), h.DMALen(), need)
	case bth.OpWrite, bth.OpAtomicWrite:
		h := p.RETH()
		x.va, x.key, x.size = h.VA(), h.RKey(), uint64(h.DMALen())
		if !info.End {
			x.end = psn + uint64(q.readPackets(h.DMALen()))
		}
		b, v = q.checkRemote(x.key, x.va, h.DMALen(), need)
	default:
		h := p.AtomicETH()
		x.size, need = atomicLen, mr.RemoteAtomic
		b, v = q.checkRemote(h.RKey(), h.VA(), atomicLen, need)
	}
	x.addr = mr.AddrOf(b)
	// Nothing after a request that will be refused may be placed either.
	if v != accept || q.access&need == 0 || !r.insert(&q.eng.pool, x) {
		r.stopPlacing(psn)
	}
}

// learnCurrent records the memory of the message in progress.
func (r *reorder) learnCurrent(q *QP) {
	switch q.msg {
	case msgSend:
		r.send = max(r.send, q.epsn-1)
	case msgWrite:
		if x := r.current(q.epsn); x != nil {
			return
		}
		b, v := q.checkRemote(q.key, q.va, q.dma, mr.RemoteWrite)
		mtu := q.mtu.Load()
		x := extent{first: q.epsn - uint64(q.off/mtu), addr: mr.AddrOf(b), size: uint64(q.dma),
			va: q.va, key: q.key, clear: true}
		x.end = x.first + uint64(q.readPackets(q.dma))
		if v == accept && q.epsn < x.end {
			r.insert(&q.eng.pool, x)
		}
	}
}

// stopPlacing records that it is not known what the held packet psn writes.
func (r *reorder) stopPlacing(psn uint64) {
	if r.unknownLast < r.from {
		r.unknownFirst = psn
	}
	r.unknownFirst, r.unknownLast = min(r.unknownFirst, psn), max(r.unknownLast, psn)
}

// insert adds an extent. It reports false if there is no space for it or it contradicts another
// one.
func (r *reorder) insert(e *reorderPool, x extent) bool {
	i := r.after(x.first)
	if i < len(r.extents) && r.extents[i].first < x.end {
		return false
	}
	if i > r.done && r.extents[i-1].end > x.first {
		if r.extents[i-1].first != x.first {
			return false
		}
		r.extents[i-1] = x // its packet was received before, but there was no memory to hold it
		return true
	}
	if len(r.extents)-r.done >= maxExtents ||
		len(r.extents) == cap(r.extents) && !e.growExtents(r) {
		return false
	}
	r.extents = append(r.extents, extent{})
	copy(r.extents[i+1:], r.extents[i:])
	r.extents[i] = x
	return true
}

// after returns the index of the first extent after psn.
func (r *reorder) after(psn uint64) int {
	low, high := r.done, len(r.extents)
	for low < high {
		if i := (low + high) / 2; r.extents[i].first > psn {
			high = i
		} else {
			low = i + 1
		}
	}
	return low
}

// current returns the extent of the expected packet, or nil.
func (r *reorder) current(epsn uint64) *extent {
	for ; r.done < len(r.extents); r.done++ {
		if x := &r.extents[r.done]; epsn < x.first {
			break
		} else if epsn < x.end {
			return x
		}
	}
	return nil
}

// compact removes the extents of executed messages.
func (r *reorder) compact(epsn uint64) {
	r.current(epsn)
	if r.done > 0 {
		r.extents, r.done = r.extents[:copy(r.extents, r.extents[r.done:])], 0
	}
}

// place puts the data of a packet after a gap in memory and reports whether it did.
func (r *reorder) place(q *QP, psn uint64, p *bth.Packet) bool {
	mtu := uint64(q.mtu.Load())
	if p.Info.End || uint64(len(p.Payload)) != mtu {
		return false
	}
	switch p.Info.Op {
	case bth.OpSend:
		return !p.Info.Start && r.placeSend(q, psn, p.Payload)
	case bth.OpWrite:
		return r.placeWrite(q, psn, p)
	}
	return false
}

// placeSend places a MIDDLE packet of the SEND in progress. The packet belongs to it if the one
// before does, or the one before that: a single missing packet before a MIDDLE packet cannot both
// end a message and start the next one.
func (r *reorder) placeSend(q *QP, psn uint64, b []byte) bool {
	if q.msg != msgSend || !q.recv.held || psn > r.send+2 {
		return false
	}
	off := uint64(q.off) + (psn-q.epsn)*uint64(len(b))
	if off+uint64(len(b)) > uint64(q.recv.length) ||
		q.scatterRecv(uint32(off), b) != Success {
		return false
	}
	r.send = max(r.send, psn)
	return true
}

// placeWrite places a FIRST or MIDDLE packet of a WRITE.
func (r *reorder) placeWrite(q *QP, psn uint64, p *bth.Packet) bool {
	mtu := uint64(q.mtu.Load())
	i := r.after(psn) - 1
	if i < r.done || q.access&mr.RemoteWrite == 0 {
		return false
	}
	x := &r.extents[i]
	// The message must have a later packet, and only its first packet may be a FIRST.
	if psn+1 >= x.end || p.Info.Start != (psn == x.first) {
		return false
	}
	off := (psn - x.first) * mtu
	if !r.mayPlace(i, psn, x.addr+off, mtu, mtu) {
		return false
	}
	b, v := q.checkRemote(x.key, x.va+off, uint32(mtu), mr.RemoteWrite)
	if v != accept {
		return false
	}
	q.eng.place(b, p)
	return true
}

// mayPlace reports whether a packet of the message with extent i may write n bytes at addr now.
func (r *reorder) mayPlace(i int, psn, addr, n, mtu uint64) bool {
	x := &r.extents[i]
	if r.unknownLast >= r.from && psn > r.unknownFirst {
		return false
	}
	if x.clear {
		return true
	}
	if !r.knows(x.first) {
		return false
	}
	x.clear = true
	for j := r.done; j < i; j++ {
		y := &r.extents[j]
		if !overlap(x.addr, x.size, y.addr, y.size) {
			continue
		}
		x.clear = false
		if overlap(addr, n, y.addr, y.size) && r.pending(y, addr, n, mtu) {
			return false
		}
	}
	return true
}

// knows reports whether every packet before psn is held or belongs to a known message.
func (r *reorder) knows(psn uint64) bool {
	r.known = max(r.known, r.from)
	for r.known < psn {
		if i := r.after(r.known) - 1; i >= r.done && r.known < r.extents[i].end {
			r.known = r.extents[i].end
		} else if r.known < r.top && r.holds(r.known) {
			r.known++
		} else {
			return false
		}
	}
	return true
}

// pending reports whether a packet of an earlier message will still write to these bytes, which
// overlap the message's memory.
func (r *reorder) pending(y *extent, addr, n, mtu uint64) bool {
	last := min(addr+n, y.addr+y.size) - 1
	shift := bits.TrailingZeros64(mtu) // it is a power of 2
	psn := max(r.from, y.first+(max(addr, y.addr)-y.addr)>>shift)
	for end := y.first + (last-y.addr)>>shift; psn <= end; psn++ {
		if psn >= r.top || !r.holds(psn) || r.parked[psn&r.mask] != nil {
			return true
		}
	}
	return false
}

// overlap reports whether two ranges of bytes overlap.
func overlap(a, n, b, m uint64) bool { return a < b+m && b < a+n }
