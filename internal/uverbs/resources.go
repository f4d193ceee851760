package uverbs

import (
	"cmp"
	"slices"

	"github.com/gorxe/gorxe/internal/nldev"
	"github.com/gorxe/gorxe/roce"
)

// open returns the contexts, oldest first.
func (d *Device) open() []*Context {
	d.mu.Lock()
	defer d.mu.Unlock()
	open := make([]*Context, 0, len(d.contexts))
	for c := range d.contexts {
		open = append(open, c)
	}
	slices.SortFunc(open, func(a, b *Context) int { return cmp.Compare(a.number, b.number) })
	return open
}

// Objects describes the objects of all contexts. It waits for calls that change objects.
func (d *Device) Objects() (o nldev.Objects) {
	for _, c := range d.open() {
		c.mu.Lock()
		c.describe(&o)
		c.mu.Unlock()
	}
	return o
}

// handleBits is the number of bits of a handle that an ID of an object has. The number of the
// context is in front of them.
const handleBits = 20

// describe adds the objects of a context. The caller holds mu.
func (c *Context) describe(o *nldev.Objects) {
	id := func(handle uint32) uint32 { return c.number<<handleBits | handle&(1<<handleBits-1) }
	pid := uint32(c.pid)
	o.Contexts = append(o.Contexts, nldev.Context{ID: c.number, PID: pid})
	pds := map[*roce.PD]uint32{}
	uses := map[*roce.PD]uint64{}
	qps := map[*sharedQueue][]uint32{}
	handles := make([]uint32, 0, len(c.objects))
	for h, x := range c.objects {
		handles = append(handles, h)
		switch x := x.(type) {
		case *roce.PD:
			pds[x] = id(h)
		case *queuePair:
			uses[x.pd]++
			qps[x.srq] = append(qps[x.srq], uint32(x.qp.QPN()))
		case *memoryRegion:
			uses[x.mr.PD()]++
		case *sharedQueue:
			uses[x.pd]++
		}
	}
	slices.Sort(handles)
	for _, h := range handles {
		switch x := c.objects[h].(type) {
		case *roce.PD:
			o.PDs = append(o.PDs, nldev.PD{ID: id(h), Uses: uses[x], PID: pid})
		case *completionQueue:
			o.CQs = append(o.CQs, nldev.CQ{ID: id(h), Entries: uint32(x.cq.Depth()),
				Uses: uint64(x.refs), PID: pid})
		case *queuePair:
			a := &x.attr
			o.QPs = append(o.QPs, nldev.QP{Number: uint32(x.qp.QPN()), PD: pds[x.pd],
				Type: x.typeCode(), State: uint8(x.inner.State()), Migration: a.migState,
				Remote: a.destQPN, RQPSN: a.rqPSN, SQPSN: a.sqPSN, PID: pid})
		case *memoryRegion:
			o.MRs = append(o.MRs, nldev.MR{ID: id(h), PD: pds[x.mr.PD()],
				Length: uint64(len(x.mirror.mem)), PID: pid})
		case *sharedQueue:
			slices.Sort(qps[x])
			o.SRQs = append(o.SRQs, nldev.SRQ{ID: x.number, PD: pds[x.pd], QPs: qps[x],
				PID: pid})
		}
	}
}

// typeCode returns the type in libibverbs.
func (q *queuePair) typeCode() uint8 {
	for code, t := range qpTypes {
		if t == q.qp.Type() {
			return code
		}
	}
	return 0
}
