package roce

import (
	"sync/atomic"

	"github.com/gorxe/gorxe/internal/prefetch"
	"github.com/gorxe/gorxe/mr"
	"github.com/gorxe/gorxe/qp"
)

// Prefetcher brings what posting a work request touches into the CPU caches before it is posted. It
// is for programs that serve thousands of QPs or memory regions and know several posts in advance
// which QP is next. It affects only speed. One goroutine at a time may use a Prefetcher;
// Device.NewPrefetcher creates it.
type Prefetcher struct {
	dev  *Device
	ring [prefetchRing]SGE // first SGEs of the latest calls; Length 0: none
	next uint
}

const (
	// prefetchRing is a power of two, larger than the lags.
	prefetchRing = 8
	// mrLag and memLag are how many calls later the region's record and the payload are prefetched.
	// Each step needs the memory that the step before has prefetched.
	mrLag, memLag = 3, 6
)

// NewPrefetcher creates a Prefetcher.
func (d *Device) NewPrefetcher() *Prefetcher { return &Prefetcher{dev: d} }

// Prefetch announces that wr will be posted on q, best seven to sixteen posts later. A WR without
// SGEs prefetches only the QP.
func (p *Prefetcher) Prefetch(q *QP, wr *SendWR) {
	q.prefetch()
	now := &p.ring[p.next%prefetchRing]
	*now = SGE{}
	if len(wr.SGEs) > 0 {
		*now = wr.SGEs[0]
		p.dev.mrs.PrefetchLocal(mr.Key(now.LKey))
	}
	if g := &p.ring[(p.next-mrLag)%prefetchRing]; g.Length > 0 {
		p.dev.mrs.PrefetchMR(mr.Key(g.LKey), false)
	}
	if g := &p.ring[(p.next-memLag)%prefetchRing]; g.Length > 0 {
		if m := p.dev.mrs.LookupLocal(mr.Key(g.LKey)); m != nil {
			m.PrefetchMemory(g.Addr, g.Length)
		}
	}
	p.next++
}

// SetPrefetch changes Expert.Prefetch while the device runs.
//
// Errors: ErrPrefetch, ErrClosed.
func (d *Device) SetPrefetch(window int) error {
	d.ctl.Lock()
	defer d.ctl.Unlock()
	var err error
	if gone := d.do(func(qp.Time) { err = d.eng.SetPrefetch(window) }); gone != nil {
		return gone
	}
	if err == nil {
		d.setPostPrefetch(window)
	}
	return err
}

// postPrefetch counts the devices whose QPs are prefetched by PostSend: those with prefetching on
// and many QPs. It is global because PostSend cannot find the QP's device without reading the
// memory that it is about to prefetch. postHooks counts these devices and those that trace, so that
// PostSend needs one check.
var postPrefetch, postHooks atomic.Int32

// postPrefetchFrom is the number of QPs of a device from which PostSend prefetches. The state of
// fewer QPs stays in the caches.
const postPrefetchFrom = 1024

// setPostPrefetch decides whether PostSend prefetches for this device. The caller holds ctl.
func (d *Device) setPostPrefetch(window int) {
	d.window = window
	switch on := window > 0 && len(d.qps) >= postPrefetchFrom && !d.closing.Load(); {
	case on && !d.postPrefetch:
		postPrefetch.Add(1)
		postHooks.Add(1)
		d.postPrefetch = true
	case !on && d.postPrefetch:
		postPrefetch.Add(-1)
		postHooks.Add(-1)
		d.postPrefetch = false
	}
}

// prefetch brings the QP's lines into the caches all at once, before its lock and queue are
// accessed one after the other. In the paper this is the software-triggered prefetch, where
// ibv_post_send writes the prefetch register.
func (q *QP) prefetch() {
	// Without this check the compiler reads the QP to check it, and waits for that memory.
	if q == nil {
		return
	}
	prefetch.Object(&q.qp, qp.PrefetchLines)
}
