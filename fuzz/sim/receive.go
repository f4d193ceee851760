package sim

import (
	"bytes"
	"slices"
	"time"

	"github.com/gorxe/gorxe/internal/verify"
	"github.com/gorxe/gorxe/roce"
)

// refillWithin bounds the time until a used receive is replaced.
const refillWithin = 2 * time.Millisecond

// slots is a region cut into receives.
type slots struct {
	g    *region
	size int
	free []int // offsets
}

func newSlots(g *region, size int) *slots {
	s := &slots{g: g, size: size}
	for at := 0; at+size <= g.n; at += size {
		s.free = append(s.free, at)
	}
	return s
}

func (s *side) newSlots(size, n int) *slots {
	return newSlots(s.region(s.h, size*n, roce.LocalWrite), size)
}

// recv is a posted receive.
type recv struct {
	id     uint64
	s      *side // nil: the SRQ's
	from   *slots
	off    int
	pieces []piece
}

// take makes a receive of a free slot.
func (h *host) take(sl *slots, s *side) (*recv, roce.RecvWR) {
	w := h.w
	last := len(sl.free) - 1
	off := sl.free[last]
	sl.free = sl.free[:last]
	w.nextID++
	r := &recv{id: w.nextID, s: s, from: sl, off: off, pieces: split(w.rng, sl.g, off, sl.size, 3)}
	h.recvs[r.id] = r
	return r, roce.RecvWR{ID: r.id, SGEs: sges(r.pieces)}
}

// refill posts as many receives as the receive queue holds.
func (s *side) refill() {
	if s.c.cfg.srq[s.i] || s.deaf || s.c.closing {
		return
	}
	if s.q.State() == roce.StateErr && !oneIn(s.w.rng, 4) {
		s.deaf = true // receives posted in ERR are flushed at once; one batch of them is enough
	}
	var wrs []roce.RecvWR
	for len(s.slots.free) > 0 {
		r, wr := s.h.take(s.slots, s)
		s.recvs = append(s.recvs, r)
		wrs = append(wrs, wr)
	}
	if len(wrs) > 0 {
		s.w.must(s.q.PostRecv(wrs...), "post %d receives", len(wrs))
	}
}

// sharedQueue is a host's SRQ.
type sharedQueue struct {
	h     *host
	srq   *roce.SRQ
	slots *slots
	away  bool // a refill is scheduled
}

const srqDepth = 16

func (h *host) newSRQ() *sharedQueue {
	size := 0
	for i := range h.w.sc.conns {
		size = max(size, h.w.sc.conns[i].slot+roce.GRHLen)
	}
	q := &sharedQueue{h: h}
	var err error
	q.srq, err = h.dev.CreateSRQ(h.PD, roce.SRQConfig{Depth: srqDepth, MaxSGE: 4})
	h.w.must(err, "SRQ")
	q.slots = newSlots(h.newRegion(size*srqDepth, roce.LocalWrite), size)
	q.refill()
	return q
}

func (q *sharedQueue) refill() {
	q.away = false
	var wrs []roce.RecvWR
	for len(q.slots.free) > 0 {
		_, wr := q.h.take(q.slots, nil)
		wrs = append(wrs, wr)
	}
	if len(wrs) > 0 {
		q.h.w.must(q.srq.PostRecv(wrs...), "post %d receives on the SRQ", len(wrs))
	}
	if oneIn(q.h.w.rng, 3) {
		q.h.w.must(q.srq.SetLimit(q.h.w.rng.IntN(srqDepth)), "SRQ limit")
	}
}

// release frees a receive's memory a little later.
func (r *recv) release(h *host) {
	delete(h.recvs, r.id)
	r.from.free = append(r.from.free, r.off)
	wait := h.w.randomDelay(refillWithin)
	switch {
	case r.s != nil:
		r.s.c.live(wait, r.s.refill)
	case !h.srq.away:
		h.srq.away = true
		h.w.after(wait, h.srq.refill)
	}
}

// received checks the completion of a receive.
func (s *side) received(wc *roce.WC, r *recv) {
	w := s.w
	if r.s != nil {
		if r.s != s || len(s.recvs) == 0 || s.recvs[0] != r {
			w.failf("side %d: receive %d completed out of order", s.i, r.id)
		}
		s.recvs = s.recvs[1:]
	}
	switch {
	case wc.Status == roce.Success && s.c.cfg.typ == roce.RC:
		s.receivedReliable(wc, r)
	case wc.Status == roce.Success:
		s.receivedUnreliable(wc, r)
	case wc.Status == roce.WRFlushErr && (s.c.closing || s.c.doomed != ""):
	case (wc.Status == roce.LocLenErr || wc.Status == roce.LocProtErr) && s.c.doomed != "":
	default:
		w.failf("side %d: receive %d completes with %v", s.i, r.id, wc.Status)
	}
	if wc.Status == roce.Success {
		s.got++
	} else {
		acceptAll(r.pieces) // part of a message may have arrived
	}
	r.release(s.h)
	if s.c.cfg.typ == roce.RC {
		s.c.maybeEnd()
	}
}

// receivedReliable expects exactly the messages that the peer posted, in order.
func (s *side) receivedReliable(wc *roce.WC, r *recv) {
	if len(s.inbox) == 0 {
		s.w.failf("side %d: receive %d completes, but nothing was sent", s.i, r.id)
	}
	m := s.inbox[0]
	s.inbox = s.inbox[1:]
	if why := m.mismatch(wc, r); why != "" {
		s.w.failf("side %d: receive %d got %+v for %v: %s", s.i, r.id, *wc, m.o, why)
	}
	if m.o.inv != nil && m.o.inv.mr.RemoteLive() {
		s.w.failf("side %d: %v was received, but the key is still valid", s.i, m.o)
	}
	if m.onReceive != nil {
		m.onReceive()
	}
	// The peer's QP may have entered ERR meanwhile. Then what it posted after this message counts
	// as failed there, but is still in flight.
	if m.o.writes() && !overlapped(m.o, s.peer.pending) && !overlapped(m.o, s.peer.lost) &&
		!m.o.crime {
		if !bytes.Equal(m.o.target.at(m.o.toff, len(m.o.data)), m.o.data) {
			s.w.failf("side %d: %v was received without its data", s.i, m.o)
		}
	}
	m.keep(r)
}

// receivedUnreliable expects any message that the peer posted. The network may have lost,
// duplicated or reordered others.
func (s *side) receivedUnreliable(wc *roce.WC, r *recv) {
	for _, m := range s.inbox {
		if m.mismatch(wc, r) != "" {
			continue
		}
		if m.o.writes() && !bytes.Equal(m.o.target.at(m.o.toff, len(m.o.data)), m.o.data) {
			continue
		}
		m.keep(r)
		return
	}
	s.w.failf("side %d: receive %d got %+v, which was not sent", s.i, r.id, *wc)
}

// mismatch returns how a completion differs from a message, or an empty string.
func (m *msg) mismatch(wc *roce.WC, r *recv) string {
	s, o := m.o.s, m.o
	why := verify.Receive(wc, &verify.Message{
		Op: o.wr.Op, Len: len(o.data), SrcQP: s.q.QPN(), Imm: m.imm, InvKey: o.wr.InvKey,
		UD: s.grh() > 0,
	})
	if why == "" && !o.writes() && !holds(behind(r.pieces, s.grh()), o.data) {
		why = "other data"
	}
	return why
}

// keep copies what was received to the model.
func (m *msg) keep(r *recv) {
	if m.o.s.c.cfg.typ == roce.UC {
		acceptAll(r.pieces) // the rest of a truncated message may follow the message
		return
	}
	if m.o.writes() {
		return
	}
	// The contents of the network header are unknown; the rest is not.
	left := m.o.s.grh()
	for _, p := range r.pieces {
		n := min(left, p.n)
		p.g.accept(p.off, n)
		left -= n
	}
	scatter(behind(r.pieces, m.o.s.grh()), m.o.data)
}

// behind skips the first n bytes of pieces.
func behind(ps []piece, n int) []piece {
	var out []piece
	for _, p := range ps {
		k := min(n, p.n)
		n -= k
		out = append(out, piece{p.g, p.off + k, p.n - k})
	}
	return out
}

// overlapped reports whether a WRITE after o may have changed what o wrote or read. For a READ
// only unfenced ones count.
func overlapped(o *op, pending []*op) bool {
	behind := o.done || !slices.Contains(pending, o)
	for _, p := range pending {
		if p == o {
			behind = true
			continue
		}
		if !behind && p.wr.ID < o.wr.ID {
			continue
		}
		if o.wr.Op == roce.OpRead && p.wr.Flags&roce.Fence != 0 {
			return false
		}
		if p.writes() && p.target == o.target && p.toff < o.toff+o.length() &&
			o.toff < p.toff+len(p.data) {
			return true
		}
	}
	return false
}
