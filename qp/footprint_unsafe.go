package qp

import (
	"unsafe"

	"github.com/gorxe/gorxe/frame"
)

// Footprint is how many bytes the rings take that a creator asks for, the SQ's first slot included, which lies in the QP: what a QP has
// beyond them does not depend on the attributes (see TestFootprint). Depths and SGEs are as CreateQP takes them.
func (a *InitAttr) Footprint() int {
	n := int(slots(max(a.SQDepth, 1))) * (int(unsafe.Sizeof(wqe{})) + a.slotSGEs()*sgeSize)
	if a.Type == UD {
		n += int(slots(max(a.SQDepth, 1))) * int(unsafe.Sizeof((*frame.Path)(nil)))
	}
	if a.SRQ != nil {
		return n + int(a.SRQ.maxSGE)*sgeSize
	}
	c := SRQConfig{Depth: a.RQDepth, MaxSGE: a.MaxRecvSGE}
	return n + c.Footprint() + max(a.MaxRecvSGE, 1)*sgeSize
}

const sgeSize = int(unsafe.Sizeof(SGE{}))

// Footprint is how many bytes the SRQ's rings take.
func (c *SRQConfig) Footprint() int {
	return int(slots(max(c.Depth, 1))) * (int(unsafe.Sizeof(rwqe{})) + max(c.MaxSGE, 1)*sgeSize)
}

// CQFootprint is how many bytes a CQ of that depth takes.
func CQFootprint(depth int) int { return int(slots(depth)) * int(unsafe.Sizeof(WC{})) }

// inlineAt is where a slot keeps inline data: in place of its SGEs.
func (s *sendQueue) inlineAt(i uint32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s.slotDataAt(s.slot(i))))), s.maxInline)
}

// roomAt is the room that a slot has beside its WQE. The queue keeps a pointer to that of the first slot and no slice, for want of room in
// its line; slots are within the ring, since they are masked by its length.
func (s *sendQueue) slotDataAt(slot uint32) []SGE {
	n := uintptr(s.slotSGEs)
	return unsafe.Slice((*SGE)(unsafe.Add(unsafe.Pointer(s.slotData), uintptr(slot)*n*uintptr(sgeSize))), n)
}

// Memory tells where the QP's rings are, for advice on their pages. Its poster's and its owner's business stays theirs: nothing is
// read.
func (q *QP) Memory(visit func(addr, n uintptr)) {
	span(visit, q.sq.wqes)
	span(visit, unsafe.Slice(q.sq.slotData, (1+len(q.sq.wqes))*int(q.sq.slotSGEs)))
	span(visit, q.rq.wqes)
	span(visit, q.rq.sges)
}

// Memory tells where the table by QPN is.
func (e *Engine) Memory(visit func(addr, n uintptr)) { span(visit, e.table.buckets) }

func span[T any](visit func(addr, n uintptr), s []T) {
	if len(s) > 0 {
		visit(uintptr(unsafe.Pointer(unsafe.SliceData(s))), uintptr(len(s))*unsafe.Sizeof(s[0]))
	}
}
