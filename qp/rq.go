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
	length uint32 // total of its SGEs, bytes
	nsge   uint8
}

// recvQueue is the ring of an RQ or SRQ.
type recvQueue struct {
	wqes   []rwqe
	sges   []SGE
	mask   uint32
	depth  uint16
	maxSGE uint8
	head   atomic.Uint32 // next slot to fill; written only by the poster
	tail   atomic.Uint32 // next slot to take; written only by the engine
}

// used returns the number of occupied slots. It is exact for the poster and the engine, and a
// snapshot for others.
func (r *recvQueue) used() uint32 { return r.head.Load() - r.tail.Load() }

func (r *recvQueue) init(depth, maxSGE int) {
	n := slots(max(depth, 1))
	r.depth, r.mask, r.maxSGE = uint16(depth), n-1, uint8(max(maxSGE, 1))
	r.wqes = make([]rwqe, n)
	r.sges = make([]SGE, n*uint32(r.maxSGE))
}

// release drops the receives and the memory of the ring. Later posts fail with ErrRQFull.
func (r *recvQueue) release() {
	r.tail.Store(r.head.Load())
	r.wqes, r.sges, r.depth, r.mask = nil, nil, 0, 0
}

// post checks the keys of receives and appends them.
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
	r.head.Store(head + uint32(n)) // before PostRecv reads the state
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
			if _, v := e.mrs.CheckLocal(pd, mr.Key(g.LKey), g.Addr, g.Length,
				mr.LocalWrite); v != mr.OK {
				return sgeError(j, g, v)
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

// take copies the oldest receive to h and frees its slot, so that a slow message does not occupy
// it. It returns false if none is posted.
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

// heldRecv is the receive of the message in progress.
type heldRecv struct {
	id     uint64
	length uint32
	nsge   uint8
	held   bool
	sges   []SGE // as many as the queue allows
}

// scatterRecv copies b to offset off of the current receive. Receives of an SRQ use the SRQ's PD
// (IBA 10.2.9).
func (q *QP) scatterRecv(off uint32, b []byte) Status {
	pd := q.pd
	if q.srq != nil {
		pd = q.srq.pd
	}
	return q.eng.scatter(pd, q.recv.sges[:q.recv.nsge], off, b)
}

// PostRecv appends receives to the QP's own receive queue and returns how many it accepted, like
// PostSend. Any goroutine may call it, but only one at a time per QP.
//
// Errors: ErrQPState in RESET, ErrRQFull, ErrInvalidWR, ErrInvalidKey, ErrHasSRQ. In state ERR the
// requests complete with WRFlushErr.
func (q *QP) PostRecv(wrs []RecvWR) (int, error) {
	if q.srq != nil {
		return 0, ErrHasSRQ
	}
	if q.State() == Reset {
		return 0, fmt.Errorf("%w: PostRecv in RESET; move the QP to INIT first", ErrQPState)
	}
	n, err := q.rq.post(q.eng, q.pd, wrs)
	// The engine enters ERR and then flushes. The poster posts and then reads the state. Either the
	// engine saw the receives, or the poster sees ERR and rings for another flush.
	if n > 0 && q.State() == Err {
		q.RingDoorbell()
	}
	return n, err
}

// SRQConfig holds the size of a shared receive queue.
type SRQConfig struct {
	Depth  int // receives, 1 to MaxQueueDepth
	MaxSGE int // SGEs per receive; 0 means 1
}

// SRQ is a receive queue that several QPs of one engine share.
type SRQ struct {
	recvQueue
	eng     *Engine
	pd      *mr.PD
	limit   atomic.Uint32
	outside Source // see SetSource
}

// NewSRQ returns a new shared receive queue. It may be called from any goroutine. Error:
// ErrInvalidDepth.
func (e *Engine) NewSRQ(pd *mr.PD, c SRQConfig) (*SRQ, error) {
	if c.Depth < 1 || c.Depth > MaxQueueDepth || c.MaxSGE < 0 || c.MaxSGE > MaxSGE {
		return nil, fmt.Errorf("%w: SRQ of depth %d with %d SGEs, "+
			"want a depth of 1 to %d and 0 to %d SGEs", ErrInvalidDepth, c.Depth, c.MaxSGE,
			MaxQueueDepth, MaxSGE)
	}
	s := &SRQ{eng: e, pd: pd}
	s.init(c.Depth, c.MaxSGE)
	return s, nil
}

// PostRecv appends receives to the SRQ. Any goroutine may call it, but only one at a time per SRQ.
func (s *SRQ) PostRecv(wrs []RecvWR) (int, error) { return s.post(s.eng, s.pd, wrs) }

// SetLimit arms one EventSRQLimitReached for the time when fewer than n receives are left (IBA
// 10.2.9.1). 0 disarms it. It may be called from any goroutine.
func (s *SRQ) SetLimit(n int) error {
	if n < 0 || n > int(s.depth) {
		return fmt.Errorf("%w: SRQ limit %d, want 0 to %d", ErrInvalidAttr, n, s.depth)
	}
	s.limit.Store(uint32(n))
	return nil
}

// Release discards the receives and releases the memory of the SRQ, which no QP may use any more.
// No other goroutine may post meanwhile; later posts fail with ErrRQFull.
func (s *SRQ) Release() { s.release() }

// Depth returns the number of receives that the SRQ holds.
func (s *SRQ) Depth() int { return int(s.depth) }

// Len returns the number of posted receives.
func (s *SRQ) Len() int { return int(s.used()) }

// takeRecv takes a receive for a new message.
func (q *QP) takeRecv() bool {
	if q.srq == nil {
		return q.rq.take(&q.recv) || q.sq.outside && q.takeOutside(q.sq.data.source)
	}
	if !q.srq.take(&q.recv) {
		return q.srq.outside != nil && q.takeOutside(q.srq.outside)
	}
	if l := q.srq.limit.Load(); l > 0 && q.srq.used() < l && q.srq.limit.CompareAndSwap(l, 0) {
		q.eng.event(Event{Kind: EventSRQLimitReached, SRQ: q.srq})
	}
	return true
}
