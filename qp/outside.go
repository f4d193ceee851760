package qp

import (
	"fmt"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/mr"
)

// Source supplies the work requests of a QP or SRQ whose queues are outside the engine, such as in
// memory that is shared with another process. The owner calls its methods.
type Source interface {
	// Sends posts waiting send work requests with QP.Post and reports whether it posted any.
	Sends() bool
	// Recv sets wr to the next receive and removes it from the queue; false: there is none. It
	// appends the SGEs to wr.SGEs, within its capacity.
	Recv(wr *RecvWR) bool
}

// SetSource makes the QP take its work requests from s. A work request with an invalid L_Key then
// fails when it runs, not when it is posted. Set it before the QP leaves RESET. Only the owner may
// call it.
func (q *QP) SetSource(s Source) { q.sq.data.source, q.sq.outside = s, true }

// SetSource makes the SRQ take its receives from s. The limit is the caller's task. Only the owner
// may call it.
func (s *SRQ) SetSource(src Source) { s.outside = src }

// SQFree returns the number of send work requests that can be posted. Only the poster may call it.
func (q *QP) SQFree() int { return int(q.sq.depth) - int(q.sq.used()) }

// takeOutside is recvQueue.take for a receive of a Source.
func (q *QP) takeOutside(s Source) bool {
	wr, h := &q.eng.taken, &q.recv
	*wr = RecvWR{SGEs: h.sges[:0]}
	if !s.Recv(wr) {
		return false
	}
	var n uint64
	for _, g := range wr.SGEs {
		n += uint64(g.Length)
	}
	h.id, h.length, h.held = wr.ID, uint32(min(n, MaxMessage)), true
	h.nsge = uint8(copy(h.sges, wr.SGEs))
	return true
}

// loadChunk is how many bytes of another process are loaded at once.
const loadChunk = 64 << 10

// load prepares the bytes [off, off+n) of an SGE in memory of another process for reading. The
// memory does not change until the work request completes. Bytes are therefore loaded ahead, in
// chunks that are counted from the start of the SGE: a packet loads the chunk that starts in it.
// Packets are sent in order at first, so that earlier ones have loaded the rest.
func (q *QP) load(g SGE, off, n uint32) bool {
	from := uint32(0)
	if off > 0 {
		from = (off + loadChunk - 1) &^ (loadChunk - 1)
	}
	if from >= off+n {
		return true
	}
	size := min(g.Length-from, loadChunk)
	b, v := q.eng.mrs.CheckLocal(q.pd, mr.Key(g.LKey), g.Addr+uint64(from), size, 0)
	return v == mr.Foreign && q.eng.mrs.LocalBacking(mr.Key(g.LKey)).Load(b)
}

// loadAnswer prepares the bytes [off, off+n) of the answer to a READ of memory of another process.
// It loads up to loadChunk bytes ahead.
func (q *QP) loadAnswer(a *answer, off, n uint32) bool {
	if off+n <= a.loaded {
		return true
	}
	size := min(a.length-off, max(n, loadChunk))
	b, v := q.eng.mrs.CheckScope(q.pd, q.scope, mr.Key(a.key), a.va+uint64(off), size,
		mr.RemoteRead)
	if v != mr.Foreign || !q.eng.mrs.RemoteBacking(mr.Key(a.key)).Load(b) {
		return false
	}
	a.loaded = off + size
	return true
}

// scatterForeign copies b to memory of another process.
func (e *Engine) scatterForeign(key bth.LKey, dst, b []byte) {
	mr.CopyIn(dst, b) // b may be scratch memory
	e.mrs.LocalBacking(mr.Key(key)).Store(dst, dst, false)
}

// aim sets target for memory of which the check had the verdict v.
func (e *Engine) aim(key bth.RKey, v mr.Verdict) {
	if v == mr.Foreign {
		e.aimOutside(key)
	} else if e.target != nil { // of an earlier request that stored nothing
		e.target = nil
	}
}

func (e *Engine) aimOutside(key bth.RKey) { e.target = e.mrs.RemoteBacking(mr.Key(key)) }

// place stores the payload of a WRITE in the memory that aim was called for.
func (e *Engine) place(dst []byte, p *bth.Packet) {
	if e.target != nil {
		e.placeOutside(dst, p)
	} else {
		mr.CopyIn(dst, p.Payload)
	}
}

// placeOutside stores the payload in Engine.target, which is memory of another process. It gets the
// bytes from the received frame.
func (e *Engine) placeOutside(dst []byte, p *bth.Packet) {
	b, n := e.target, min(len(dst), len(p.Payload))
	e.target = nil
	dst = dst[:n]
	src := p.Payload[:n]
	if p == &e.parked { // its memory may be used again before the bytes are written
		mr.CopyIn(dst, src)
		src = dst
	}
	b.Store(dst, src, p.Info.End)
}

// Resize changes the number of completions that the CQ holds. It must be empty, and only the
// consumer may call it, as the owner. Error: ErrInvalidDepth.
func (c *CQ) Resize(depth int) error {
	if depth < 1 || depth > MaxCQDepth || c.Len() > 0 {
		return fmt.Errorf("%w: resize a CQ of %d completions to %d", ErrInvalidDepth, c.Len(),
			depth)
	}
	n := slots(depth)
	c.wcs, c.mask, c.depth = make([]WC, n), n-1, uint32(depth)
	c.freeFrom = c.tail.Load()
	return nil
}
