package qp

import (
	"fmt"
	"sync/atomic"

	"github.com/gorxe/gorxe/internal/fence"
	"github.com/gorxe/gorxe/mr"
)

// rwqe is a receive work request in its slot.
type rwqe struct {
	id     uint64
	length uint32 // room, bytes
	nsge   uint8
}

// recvQueue is the ring of an RQ or SRQ.
type recvQueue struct {
	wqes   []rwqe
	sges   []SGE
	mask   uint32
	depth  uint16
	maxSGE uint8
	head   atomic.Uint32 // next slot to fill; written by the poster only
	tail   atomic.Uint32 // next slot to take; written by the engine only
}

// used is how many slots are taken; exact for either end, a snapshot for others.
func (r *recvQueue) used() uint32 { return r.head.Load() - r.tail.Load() }

func (r *recvQueue) init(depth, maxSGE int) {
	n := slots(max(depth, 1))
	r.depth, r.mask, r.maxSGE = uint16(depth), n-1, uint8(max(maxSGE, 1))
	r.wqes = make([]rwqe, n)
	r.sges = make([]SGE, n*uint32(r.maxSGE))
}

// post appends receives; q checks the keys.
func (r *recvQueue) post(e *Engine, pd *mr.PD, wrs []RecvWR) (int, error) {
	head := r.head.Load()
	free := uint32(r.depth) - (head - r.tail.Load())
	n := 0
	var err error
	for n = range wrs {
		if free == uint32(n) {
			err = ErrRQFull
			break
		}
		if err = r.fill(e, pd, head+uint32(n), &wrs[n]); err != nil {
			break
		}
	}
	if err == nil {
		n = len(wrs)
	}
	r.head.Store(head + uint32(n)) // before PostRecv's look at the state
	return n, err
}

func (r *recvQueue) fill(e *Engine, pd *mr.PD, i uint32, wr *RecvWR) error {
	if len(wr.SGEs) > int(r.maxSGE) {
		return fmt.Errorf("%w: %d SGEs, the queue allows %d", ErrInvalidWR, len(wr.SGEs), r.maxSGE)
	}
	slot := i & r.mask
	dst := r.sges[slot*uint32(r.maxSGE):]
	var n uint64
	for j, g := range wr.SGEs {
		if g.Length > 0 {
			if _, v := e.mrs.CheckLocal(pd, mr.Key(g.LKey), g.Addr, g.Length, mr.LocalWrite); v != mr.OK {
				return refuseSGE(j, &g, v)
			}
		}
		n += uint64(g.Length)
		dst[j] = g
	}
	if n > MaxMessage {
		return fmt.Errorf("%w: receive of %d bytes, the limit is 2^31", ErrInvalidWR, n)
	}
	r.wqes[slot] = rwqe{id: wr.ID, length: uint32(n), nsge: uint8(len(wr.SGEs))}
	return nil
}

// take copies the oldest receive into h and frees its slot, so that a slow message does not hold
// it; false: none is posted.
func (r *recvQueue) take(h *heldRecv) bool {
	tail := r.tail.Load()
	if tail == r.head.Load() {
		return false
	}
	slot := tail & r.mask
	w := &r.wqes[slot]
	h.id, h.length, h.held = w.id, w.length, true
	at := slot * uint32(r.maxSGE)
	h.nsge = uint8(copy(h.sges, r.sges[at:at+uint32(w.nsge)]))
	fence.Store(&r.tail, tail+1)
	return true
}

// heldRecv is the receive that an incoming message is being scattered into.
type heldRecv struct {
	id     uint64
	length uint32
	nsge   uint8
	held   bool
	sges   []SGE // as many as the queue allows
}

// scatterRecv copies b to offset off of the held receive. An SRQ's receives are memory of the SRQ's
// PD, whatever the QP's (IBA 10.2.9).
func (q *QP) scatterRecv(off uint32, b []byte) Status {
	pd := q.pd
	if q.srq != nil {
		pd = q.srq.pd
	}
	return q.eng.scatter(pd, q.recv.sges[:q.recv.nsge], off, b)
}

// PostRecv puts receives on the QP's own receive queue and returns how many it took, as PostSend
// does. Any goroutine, one at a time for each QP.
//
// Errors: ErrQPState in RESET, ErrRQFull, ErrInvalidWR, ErrInvalidKey, ErrHasSRQ. In state ERR the
// requests complete with WRFlushErr.
func (q *QP) PostRecv(wrs []RecvWR) (int, error) {
	if q.srq != nil {
		return 0, ErrHasSRQ
	}
	if q.State() == Reset {
		return 0, fmt.Errorf("%w: PostRecv in RESET, it needs INIT", ErrQPState)
	}
	n, err := q.rq.post(q.eng, q.pd, wrs)
	// The engine goes to ERR, then flushes; we post, then look at the state: either it saw the
	// receives or we see ERR and ring for another flush.
	if n > 0 && q.State() == Err {
		q.RingDoorbell()
	}
	return n, err
}

// SRQConfig says how large a shared receive queue is.
type SRQConfig struct {
	Depth  int // receives, 1 to MaxQueueDepth
	MaxSGE int // of each, 0 means 1
}

// SRQ is a receive queue that several QPs of one engine share.
type SRQ struct {
	recvQueue
	eng   *Engine
	pd    *mr.PD
	limit atomic.Uint32
}

// NewSRQ makes a shared receive queue. Any goroutine.
func (e *Engine) NewSRQ(pd *mr.PD, c SRQConfig) (*SRQ, error) {
	if c.Depth < 1 || c.Depth > MaxQueueDepth || c.MaxSGE < 0 || c.MaxSGE > MaxSGE {
		return nil, fmt.Errorf("%w: SRQ of depth %d with %d SGEs; allowed are 1 to %d, and 0 to %d", ErrInvalidDepth, c.Depth, c.MaxSGE, MaxQueueDepth, MaxSGE)
	}
	s := &SRQ{eng: e, pd: pd}
	s.init(c.Depth, c.MaxSGE)
	return s, nil
}

// PostRecv puts receives on the SRQ. Any goroutine, one at a time for each SRQ.
func (s *SRQ) PostRecv(wrs []RecvWR) (int, error) { return s.post(s.eng, s.pd, wrs) }

// SetLimit arms one EventSRQLimitReached for when fewer than n receives are left (IBA 10.2.9.1);
// 0 disarms. Any goroutine.
func (s *SRQ) SetLimit(n int) error {
	if n < 0 || n > int(s.depth) {
		return fmt.Errorf("%w: SRQ limit %d, the SRQ holds %d", ErrInvalidAttr, n, s.depth)
	}
	s.limit.Store(uint32(n))
	return nil
}

// Len is how many receives are posted.
func (s *SRQ) Len() int { return int(s.used()) }

// takeRecv takes a receive for a message that begins.
func (q *QP) takeRecv() bool {
	if q.srq == nil {
		return q.rq.take(&q.recv)
	}
	if !q.srq.take(&q.recv) {
		return false
	}
	if l := q.srq.limit.Load(); l > 0 && q.srq.used() < l && q.srq.limit.CompareAndSwap(l, 0) {
		q.eng.event(Event{Kind: EventSRQLimitReached, SRQ: q.srq})
	}
	return true
}
