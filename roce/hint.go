package roce

import (
	"sync/atomic"

	"github.com/gorxe/gorxe/mr"
	"github.com/gorxe/gorxe/mr/prefetch"
	"github.com/gorxe/gorxe/qp"
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
	// hintRing is a power of two; a hint's third step is done when it is the oldest.
	hintRing = 4
	// hintLag is how many hints later the second step of a hint is done, when the first has arrived.
	hintLag = 2
)

// NewHinter makes a Hinter.
func (d *Device) NewHinter() *Hinter { return &Hinter{dev: d} }

// Hint tells that wr will be posted to q, some four to sixteen posts later. A WR without SGEs will do for the QP alone.
func (h *Hinter) Hint(q *QP, wr *SendWR) {
	q.ahead()
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
	if then.sge.Length > 0 {
		h.dev.mrs.AheadMR(mr.Key(then.sge.LKey), false)
	}
	if oldest := &h.ring[h.next%hintRing]; oldest.sge.Length > 0 {
		if m := h.dev.mrs.Fetched(mr.Key(oldest.sge.LKey)); m != nil {
			m.AheadMemory(oldest.sge.Addr, oldest.sge.Length)
		}
	}
}

// hinting counts the devices whose posters hint: those that look ahead and have many QPs. It is not a field of the device, because to
// ask a QP for its device would fetch what is to be fetched.
var hinting atomic.Int32

// hintFrom is how many QPs a device has whose posters hint: those of fewer find all in the caches.
const hintFrom = 1024

// hint decides whether the device's posters hint. The caller holds ctl.
func (d *Device) hint(window int) {
	d.window = window
	switch on := window > 0 && len(d.qps) >= hintFrom && !d.closing.Load(); {
	case on && !d.hints:
		hinting.Add(1)
		d.hints = true
	case !on && d.hints:
		hinting.Add(-1)
		d.hints = false
	}
}

// ahead fetches the QP that is about to be posted to, before its lock and its work request are looked at: all its lines come at once then,
// and not one after the other. This is the paper's software-triggered prefetch, where the prefetch register is written by
// ibv_post_send.
func (q *QP) ahead() {
	if q == nil { // said aloud, or the compiler checks it by reading the QP, which waits for what is to be fetched
		return
	}
	prefetch.Object(&q.qp, qp.AheadLines)
}
