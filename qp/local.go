package qp

import (
	"fmt"

	"github.com/gorxe/gorxe/mr"
)

// The local operations BIND_MW, LOCAL_INV and REG_MR wait in the send queue like other work
// requests and complete in order, but send no packet (IBA 10.6.6, 10.6.7).
//
// The order among operations (IBA 10.8.3.3 and 10.6.5):
//
//   - A work request after a local operation starts only when that has run, so a SEND may carry a
//     key that an earlier BIND_MW or REG_MR made.
//   - BIND_MW and REG_MR run as soon as everything before them has been sent; with Fence, when
//     earlier READs, atomics and FLUSHes are complete.
//   - LOCAL_INV runs when everything before it is complete, with or without Fence. The architecture
//     makes that optional (local invalidate fence); without it, a retransmitted packet could find
//     its memory gone.
//
// A local operation runs once. When sending goes back, it is skipped.

// fillOther checks a FLUSH or local operation and copies it into its slot.
func (q *QP) fillOther(i uint32, w *wqe, wr *SendWR) error {
	if len(wr.Inline) > 0 || (len(wr.SGEs) > 0 && wr.Op != OpBindMW) {
		return fmt.Errorf("%w: %s takes no data; leave SGEs and Inline empty", ErrInvalidWR, wr.Op)
	}
	*w = wqe{id: wr.ID, op: wr.Op, flags: wr.Flags, rkey: wr.RKey}
	switch wr.Op {
	case OpFlush:
		return fillFlush(w, wr)
	case OpBindMW:
		return q.fillBind(i, w, wr)
	case OpLocalInv:
		w.extra = uint32(wr.InvKey)
	}
	return nil
}

// fillBind copies the range of a window. The keys are checked when the bind runs, because an
// earlier work request may still create them.
func (q *QP) fillBind(i uint32, w *wqe, wr *SendWR) error {
	if len(wr.SGEs) > 1 {
		return fmt.Errorf("%w: %s takes one SGE, the range of the window, or none to unbind; got %d",
			ErrInvalidWR, wr.Op, len(wr.SGEs))
	}
	w.extra, w.raddr = uint32(wr.Access), uint64(wr.InvKey)
	w.nsge = uint8(len(wr.SGEs))
	if copy(q.sq.sgesAt(i), wr.SGEs) > 0 {
		w.length = wr.SGEs[0].Length
	}
	return nil
}

// passLocals runs the local operations at the cursor and returns the next work request. It returns
// nil if there is none, or if a local operation must wait or has failed.
func (q *QP) passLocals() *wqe {
	s := &q.sq
	for s.cur != s.head.Load() {
		w := s.at(s.cur)
		if !w.op.local() {
			return w
		}
		if s.cur == s.started && !q.startLocal(w) {
			return nil
		}
		if w.status != Success {
			return nil // earlier requests complete first
		}
		s.cur++
		if q.retireLocals(); q.State() == Err {
			return nil
		}
	}
	return nil
}

// startLocal runs a local operation and reports whether it did.
func (q *QP) startLocal(w *wqe) bool {
	s := &q.sq
	switch {
	case q.State() != RTS, w.flags&Fence != 0 && q.rdUsed > 0:
		return false
	case w.op == OpLocalInv && s.cur != s.tail.Load():
		return false
	}
	w.psn, w.npkts = q.max, 0
	s.started++
	s.locals++
	if err := q.runLocal(w); err != nil {
		s.locals--
		// IBA 11.6.2 "memory management operation error".
		q.halt(w, MWBindErr)
		return false
	}
	return true
}

func (q *QP) runLocal(w *wqe) error {
	t := q.eng.mrs
	switch w.op {
	case OpBindMW:
		b := mr.Bind{RKey: mr.Key(w.rkey), Old: mr.Key(w.raddr), Len: w.length,
			Access: mr.Access(w.extra)}
		if w.nsge > 0 {
			g := &q.sq.sgesAt(q.sq.cur)[0]
			b.LKey, b.Addr = mr.Key(g.LKey), g.Addr
		}
		if q.scope == nil {
			q.scope, q.scoped = new(mr.Scope), true
		}
		return t.Bind(q.pd, q.scope, &b)
	case OpLocalInv:
		return t.InvalidateScope(q.pd, q.scope, mr.Key(w.extra))
	default:
		return t.RegisterFast(q.pd, mr.Key(w.rkey))
	}
}

// retireLocals completes local operations that have run and are now the oldest. After a go-back,
// the cursor may point to one of them.
func (q *QP) retireLocals() {
	s := &q.sq
	for tail := s.tail.Load(); s.locals > 0; tail++ {
		if w := s.at(tail); !w.op.local() {
			return
		}
		if s.cur == tail {
			s.cur++
		}
		s.locals--
		if q.retire(Success); q.State() == Err {
			return
		}
	}
}

// endScope releases the QP's memory windows.
func (q *QP) endScope() {
	if q.scope != nil {
		q.scope.End()
		q.scope, q.scoped = nil, false
	}
}
