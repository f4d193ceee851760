package qp

// When a gap is filled, the packets held after it are executed, up to the next gap. There may be
// 2^17 of them, so only maxFill are executed in a row. A QP with more waits in Engine.fills, and
// HandleTimeout continues, so that other QPs are served in between. Packets that arrive meanwhile
// are held as after a gap.

// maxFill is the number of held packets that are executed in a row. It is a few times the number of
// packets that a step receives, so a QP that is being filled catches up with its peer.
const maxFill = 256

// fillList is a queue of QPs that have more held packets to execute, and of memory with many held
// packets that QPs have returned.
type fillList struct {
	first, last *reorder
	most        int // maxFill, or less in tests
}

// inFills is what a reorder contains for a fillList.
type inFills struct {
	listed   bool
	filling  *QP // nil: the memory was returned
	fillNext *reorder
}

func (l *fillList) push(r *reorder, q *QP) {
	r.inFills = inFills{listed: true, filling: q}
	if l.first == nil {
		l.first = r
	} else {
		l.last.fillNext = r
	}
	l.last = r
}

// Filling reports whether held packets wait for HandleTimeout.
func (e *Engine) Filling() bool { return e.fills.first != nil }

// continueFill handles packets of the first entry of Engine.fills.
func (e *Engine) continueFill(now Time) {
	r := e.fills.first
	if r == nil {
		return
	}
	q := r.filling
	e.fills.first, r.inFills = r.fillNext, inFills{}
	if q != nil {
		q.fill(now)
		return
	}
	r.discard(&e.pool, min(r.from+uint64(e.fills.most), r.top))
	e.release(r)
}

// release returns the memory of held packets to the engine, that of many packets in several steps.
func (e *Engine) release(r *reorder) {
	switch {
	case r.listed:
		r.filling = nil
	case r.held > e.fills.most:
		e.fills.push(r, nil)
	default:
		e.pool.give(r)
	}
}

// fill executes the held packets that follow the ones executed, at most maxFill.
func (q *QP) fill(now Time) {
	r := q.reorder
	r.stalled = false
	first := q.epsn
	for left := q.eng.fills.most; ; left-- {
		r.discard(&q.eng.pool, q.epsn)
		if r.held == 0 || !r.holds(q.epsn) {
			break
		}
		if left == 0 {
			q.eng.fills.push(r, q)
			break
		}
		if !q.executeHeld(now, r) {
			break
		}
	}
	if q.reorder == nil { // the QP is in ERR
		return
	}
	if !r.listed {
		r.dropped = false
	}
	if r.held == 0 {
		q.releaseReorder()
		q.refused = q.refusedRNR
	} else {
		r.compact(q.epsn)
		q.refused = true
	}
	if q.nakOwed && !q.refusedRNR { // cannotHold dropped a packet before this one arrived
		q.nakPSN = q.epsn
	}
	switch {
	case q.epsn != first && (q.refused || q.unacked > 0), q.unacked >= selAckBatch:
		q.oweAck(now, true)
		q.ackAtOnce()
	case q.refused && !q.ackOwed:
		q.oweAck(now, true)
	}
}

// executeHeld executes the expected packet, which is held. It reports whether the next one may
// follow.
func (q *QP) executeHeld(now Time, r *reorder) bool {
	e := q.eng
	h := r.parked[q.epsn&r.mask]
	if h == nil {
		return q.countPlaced(r)
	}
	p := &e.parked
	if p.Parse(h.b[:h.n]) != nil {
		return false // cannot happen: it was parsed before
	}
	psn := q.epsn
	v := q.execute(p)
	if q.reorder == nil {
		return false
	}
	switch v {
	case drop: // the answer queue is full
		r.stalled = true
		return false
	case refuseRNR: // the requester sends it again
		r.drop(&e.pool, psn)
	}
	q.respond(now, v, p)
	return q.reorder != nil && q.epsn != psn
}

// countPlaced accounts for the expected packet, whose data is in memory already.
func (q *QP) countPlaced(r *reorder) bool {
	v := refuseInvalid
	switch x := r.current(q.epsn); {
	case x != nil && x.first == q.epsn && q.msg == msgNone:
		q.va, q.key, q.dma, q.off, q.msg = x.va, x.key, uint32(x.size), q.mtu.Load(), msgWrite
		v = accept
	case q.msg == msgSend && q.recv.held, x != nil && q.msg == msgWrite:
		q.off += q.mtu.Load()
		v = accept
	}
	if v != accept {
		q.refuseFatally(v)
		return false
	}
	q.epsn++
	q.ackable = q.epsn
	q.unacked++
	return true
}
