package qp

import (
	"unsafe"

	"github.com/gorxe/gorxe/frame"
)

// Footprint returns the memory in bytes of the rings that CreateQP allocates for these parameters,
// including the SQ's first slot, which lies in the QP. The rest of a QP has a constant size; see
// TestFootprint.
func (a *InitAttr) Footprint() int {
	n := int(slots(max(a.SQDepth, 1))) * (int(unsafe.Sizeof(wqe{})) + max(a.MaxSendSGE,
		1)*sgeSize + a.MaxInline)
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

// Footprint returns the memory of the SRQ's rings in bytes.
func (c *SRQConfig) Footprint() int {
	return int(slots(max(c.Depth, 1))) * (int(unsafe.Sizeof(rwqe{})) + max(c.MaxSGE, 1)*sgeSize)
}

// CQFootprint returns the memory of a CQ with that depth in bytes.
func CQFootprint(depth int) int { return int(slots(depth)) * int(unsafe.Sizeof(WC{})) }

// Memory calls visit with the address and size of each of the QP's rings, for madvise. It reads
// none of them.
func (q *QP) Memory(visit func(addr, n uintptr)) {
	span(visit, q.sq.wqes)
	span(visit, q.sq.data.sges)
	span(visit, q.sq.data.inline)
	span(visit, q.rq.wqes)
	span(visit, q.rq.sges)
}

// Memory calls visit with the address and size of the QP table.
func (e *Engine) Memory(visit func(addr, n uintptr)) { span(visit, e.table.buckets) }

func span[T any](visit func(addr, n uintptr), s []T) {
	if len(s) > 0 {
		visit(uintptr(unsafe.Pointer(unsafe.SliceData(s))), uintptr(len(s))*unsafe.Sizeof(s[0]))
	}
}
