package scale

import (
	"github.com/gorxe/gorxe/internal/prefetch"
	"github.com/gorxe/gorxe/roce"
)

// maxAhead limits how many posts in advance the QP of a batch is picked.
const maxAhead = 16

// batch is a burst of work requests for one QP.
type batch struct {
	q    *roce.QP
	wrs  []roce.SendWR
	sges []roce.SGE
}

func (b *batch) init(burst int) {
	b.wrs, b.sges = make([]roce.SendWR, burst), make([]roce.SGE, burst)
	for i := range b.wrs {
		b.wrs[i] = roce.SendWR{Op: roce.OpWrite, SGEs: b.sges[i : i+1]}
	}
	b.wrs[burst-1].Flags = roce.Signaled
}

// pickQP picks a QP that has nothing in flight, if the lane has enough QPs.
func (o *load) pickQP() int {
	i := o.qp.pick()
	if o.busy == nil {
		return i
	}
	for o.busy[i] {
		i = o.qp.pick()
	}
	o.busy[i] = true
	return i
}

// pickNext picks the QP and the MR of the batch that is prepared next. With prefetching it also
// prefetches the benchmark's own lists.
func (o *load) pickNext() {
	o.nextQP = o.pickQP()
	q := &o.d.send.QPs[o.nextQP]
	if o.lane.name != nameMRs {
		if o.prefetcher != nil {
			prefetch.Object(q, 1)
		}
		return
	}
	o.nextMR = o.mr.pick()
	if o.prefetcher != nil {
		prefetch.Pair(q, &o.d.targets[o.nextMR])
	}
}

// prepare fills in a batch for the picked QP and memory. With prefetching it tells the device: a
// program that serves many peers knows some posts in advance which one it will serve.
func (o *load) prepare(b *batch) {
	i := o.nextQP
	for k := range b.wrs {
		if o.lane.name == nameMRs {
			if k > 0 {
				o.nextMR = o.mr.pick()
			}
			t := &o.d.targets[o.nextMR]
			b.sges[k], b.wrs[k].RemoteAddr, b.wrs[k].RKey = t.src, t.dst, t.key
			continue
		}
		t, at := &o.d.first, uint64(i*msgSize)
		b.sges[k] = roce.SGE{Addr: t.src.Addr + at, Length: msgSize, LKey: t.src.LKey}
		b.wrs[k].RemoteAddr, b.wrs[k].RKey = t.dst+at, t.key
	}
	b.wrs[o.burst-1].ID = uint64(i)
	b.q = o.d.send.QPs[i]
	if o.prefetcher != nil {
		o.prefetcher.Prefetch(b.q, &b.wrs[0])
	}
	o.pickNext()
}
