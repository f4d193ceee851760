package roce

import (
	"sync/atomic"

	"github.com/gorxe/gorxe/internal/prefetch"
	"github.com/gorxe/gorxe/mr"
	"github.com/gorxe/gorxe/qp"
)

// Hinter is for a poster who serves thousands of QPs or regions and knows a few posts ahead whom it will serve: it has fetched
// from memory what posting and sending will touch, while the posts before go on. It changes nothing but time. One
// goroutine uses it at a time; its zero value is no use, Device.NewHinter makes one.
type Hinter struct {
	dev  *Device
	ring [hintRing]SGE // of no length: the hint had none
	next uint
}

const (
	// hintRing is a power of two, and more than the lags.
	hintRing = 8
	// mrLag and memLag are how many hints later the second and the third step of a hint are done: when what the one before
	// asked for has arrived.
	mrLag, memLag = 3, 6
)

// NewHinter makes a Hinter.
func (d *Device) NewHinter() *Hinter { return &Hinter{dev: d} }

// Hint tells that wr will be posted to q, some seven to sixteen posts later. A WR without SGEs will do for the QP alone.
func (h *Hinter) Hint(q *QP, wr *SendWR) {
	q.ahead()
	now := &h.ring[h.next%hintRing]
	*now = SGE{}
	if len(wr.SGEs) > 0 {
		*now = wr.SGEs[0]
		h.dev.mrs.AheadLocal(mr.Key(now.LKey))
	}
	if g := &h.ring[(h.next-mrLag)%hintRing]; g.Length > 0 {
		h.dev.mrs.AheadMR(mr.Key(g.LKey), false)
	}
	if g := &h.ring[(h.next-memLag)%hintRing]; g.Length > 0 {
		if m := h.dev.mrs.Fetched(mr.Key(g.LKey)); m != nil {
			m.AheadMemory(g.Addr, g.Length)
		}
	}
	h.next++
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
