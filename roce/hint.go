package roce

import (
	"github.com/gorxe/gorxe/mr"
	"github.com/gorxe/gorxe/mr/prefetch"
)

// Hinter is for a poster who serves thousands of QPs or regions and knows a few posts ahead whom it will serve: it has fetched
// from memory what posting and sending will touch, while the posts before go on. It changes nothing but time. One
// goroutine uses it at a time; its zero value is no use, Device.NewHinter makes one.
type Hinter struct {
	dev  *Device
	ring [hintRing]hinted
	next uint
}

type hinted struct {
	q   *QP
	sge SGE
}

const (
	hintRing = 4 // a power of two
	// hintLag is how many hints later the second step of a hint is done, when the first has arrived.
	hintLag = 2
)

// NewHinter makes a Hinter.
func (d *Device) NewHinter() *Hinter { return &Hinter{dev: d} }

// Hint tells that wr will be posted to q, some four to sixteen posts later. A WR without SGEs will do for the QP alone.
func (h *Hinter) Hint(q *QP, wr *SendWR) {
	if q == nil { // said aloud, or the compiler checks it by reading the QP, which waits for what is to be fetched
		return
	}
	q.qp.Ahead()
	prefetch.Object(&q.dev, 1)
	now := &h.ring[h.next%hintRing]
	now.q, now.sge = q, SGE{}
	if len(wr.SGEs) > 0 {
		now.sge = wr.SGEs[0]
		h.dev.mrs.AheadLocal(mr.Key(now.sge.LKey))
	}
	then := &h.ring[(h.next-hintLag)%hintRing]
	h.next++
	if then.q == nil {
		return
	}
	then.q.qp.AheadSlot()
	if then.sge.Length > 0 {
		if m := h.dev.mrs.AheadMR(mr.Key(then.sge.LKey), false); m != nil {
			m.AheadMemory(then.sge.Addr, then.sge.Length)
		}
	}
}
