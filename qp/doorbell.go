package qp

// A doorbell tells the engine that another goroutine has posted work requests to a QP.
// Engine.doorbells is a lock-free list of such QPs, linked by QP.doorbellNext.

// SetDoorbellHook sets a function that the engine calls on the poster's goroutine when the doorbell
// list becomes non-empty. It wakes a sleeping owner. Set it before use.
func (e *Engine) SetDoorbellHook(f func()) { e.doorbellHook = f }

// DoorbellPending reports whether HandleDoorbells has work. It may be called from any goroutine.
func (e *Engine) DoorbellPending() bool { return e.doorbells.Load() != nil }

// RingDoorbell tells the engine that the QP has new work requests. It adds the QP to the doorbell
// list unless it is on it. It may be called from any goroutine.
func (q *QP) RingDoorbell() {
	// There is no load before the swap. Even a failed swap is the barrier between Post's store to
	// head and the load of rung: the engine sees either the new head or the doorbell.
	if !q.rung.CompareAndSwap(false, true) {
		return
	}
	e := q.eng
	for {
		top := e.doorbells.Load()
		q.doorbellNext = top
		if e.doorbells.CompareAndSwap(top, q) {
			if top == nil && e.doorbellHook != nil {
				e.doorbellHook()
			}
			return
		}
	}
}

// HandleDoorbells processes the QPs to which other goroutines have posted.
func (e *Engine) HandleDoorbells(now Time) {
	if e.doorbells.Load() == nil {
		return
	}
	// The list is newest first. Reverse it, so that QPs are served in the order of their posts.
	var first *QP
	for q := e.doorbells.Swap(nil); q != nil; {
		next := q.doorbellNext
		q.doorbellNext, first = first, q
		q = next
	}
	for first != nil {
		q := first
		first, q.doorbellNext = q.doorbellNext, nil
		q.rung.Store(false) // before looking at the queue: a later post rings again
		e.Posted(q)
	}
}

// Posted processes new work requests of a QP without a doorbell. Only the engine's owner may call
// it.
func (e *Engine) Posted(q *QP) {
	if q.sq.outside {
		q.sq.data.source.Sends()
	}
	switch q.State() {
	case Err:
		q.flush()
	case SQE: // IBA 10.3.1.6
		q.flushSends()
	case Reset: // or destroyed
	default:
		e.schedule(q)
	}
}
