package qp

import "slices"

// repairSpace returns how many more packets may be in flight, n being what the window permits if
// all packets from una on are in flight. Packets that are held or lost are not.
func (q *QP) repairSpace(n int) int {
	b := q.cc.board
	return min(n+int(b.held+b.lost), selectiveSpan-int(q.max-q.una))
}

// workRequest returns the counter of the work request that packet p, which was sent, belongs to.
func (q *QP) workRequest(p uint64) uint32 {
	s := &q.sq
	low, n := s.tail.Load(), s.started-s.tail.Load()
	for n > 1 { // the last one that starts at p or before; local operations have no packets
		half := n / 2
		if s.at(low+half).psn <= p {
			low, n = low+half, n-half
		} else {
			n = half
		}
	}
	return low
}

// sendRepair retransmits the lowest lost packet, or the oldest one as a probe.
func (q *QP) sendRepair(now Time, b []byte) (total, netLen int) {
	s := q.cc.board
	space, probe := q.windowSpace(), s.probe
	var p uint64
	switch {
	case probe:
		p = q.una
		if s.isHeld(p) { // the peer contradicts itself
			s.heldBits[s.at(p)] &^= 1 << (p % 64)
			s.held--
		}
		space = max(space, 1)
	case q.awaitPace(now):
		return 0, 0
	default:
		// The oldest packet does not wait for the window: the READs behind it, which fill the
		// window, wait for it.
		if p = s.firstLost(); p == q.una {
			space = max(space, 1)
		}
		if space <= 0 {
			return 0, 0
		}
	}
	i := q.workRequest(p)
	w := q.sq.at(i)
	if w.status != Success {
		return 0, 0 // earlier requests complete first
	}
	var st Status
	n := uint64(1)
	switch {
	case w.op < OpRead:
		mtu := q.mtu.Load()
		off := uint32(p-w.psn) * mtu
		length := min(mtu, w.length-off)
		total, netLen, st = q.putData(b, i, p, off, length, q.asks(s, space))
		q.countSent(length)
	case w.op == OpRead:
		if q.attr.Selective {
			p, n = q.repairedRun(w, p, space)
		} else if p, n = q.repairedPart(w, p, space); n == 0 {
			return 0, 0
		}
		total, netLen = q.putRead(b, w, p, uint32(p-w.psn), uint32(n))
	case w.op == OpFlush:
		total, netLen = q.putFlush(b, w, p)
	case w.op == OpAtomicWrite:
		total, netLen, st = q.putAtomicWrite(b, i, p)
	default:
		total, netLen = q.putAtomic(b, i, p)
	}
	if st != Success {
		q.halt(w, st)
		return 0, 0
	}
	q.repaired(now, w, p, n)
	return total, netLen
}

// windowSpace returns how many packets may be retransmitted now.
func (q *QP) windowSpace() int {
	b := q.cc.board
	return int(q.win.size()) - int(q.max-q.una) + int(b.held+b.lost)
}

// asks reports whether the next retransmitted packet sets AckReq: a probe, the last one that is
// lost or fits the window, and some of the others.
func (q *QP) asks(b *scoreboard, space int) bool {
	b.asked++
	if !b.probe && b.lost > 1 && space > 1 && b.asked < ackInterval {
		return false
	}
	b.asked = 0
	return true
}

// repairedRun returns the responses of a READ to request again because packet p is missing.
//
// If the responder has executed the request, they are those that are lost from p on, as many as fit
// the window. Otherwise it may know nothing of the request, and then accepts only requests that end
// where an earlier one ended. So the rest of the part is requested, whatever the window. Only after
// a timeout, when that much may be lost again, the oldest packets are requested alone; until they
// have arrived, no request crosses the end of that piece.
func (q *QP) repairedRun(w *wqe, p uint64, space int) (from, n uint64) {
	b := q.cc.board
	start, end := w.partOf(p)
	switch {
	case p < b.executed:
		end = min(end, b.executed)
		for n = 1; p+n < end && n < uint64(space) && b.isLost(p+n); n++ {
		}
		return p, n
	case p < b.piece:
		return p, b.piece - p
	case p == q.una && q.win.probing:
		b.piece = min(end, p+uint64(max(space, minReadRetry)))
		return p, b.piece - p
	}
	from = max(start, b.executed, b.piece)
	return from, end - from
}

// repairedPart is repairedRun for peers without selective repeat. A responder may remember only the
// last request for a part, and rejects a duplicate that starts before it or ends after it. So
// everything from the first missing response to the end of the part is requested. If that is much
// more than the window, it is requested in pieces, each of them after the previous one has arrived.
// If n is 0, wait.
func (q *QP) repairedPart(w *wqe, p uint64, space int) (from, n uint64) {
	b := q.cc.board
	start, end := w.partOf(p)
	start = max(start, q.una)
	if p < b.piece {
		from = b.heldRun(start, b.piece)
		return from, b.piece - from
	}
	if start < b.piece {
		return p, 0
	}
	from = b.heldRun(start, end)
	n = end - from
	if most := max(space, int(q.win.size()/2)); int(n) > most {
		if from != q.una {
			return p, 0
		}
		n = uint64(max(space, minReadRetry))
		b.piece = from + n
	}
	return from, n
}

// repaired updates the state after n packets from p on were retransmitted or requested again.
func (q *QP) repaired(now Time, w *wqe, p, n uint64) {
	b, r := q.cc.board, &q.rec
	for at := p; at < p+n; at++ {
		if b.isLost(at) {
			b.unmarkLost(at)
		}
	}
	// The peer executes the requests after a lost one only after its retransmission.
	waits := w.op >= OpRead && p >= b.executed
	if r.samplePSN > p && (r.samplePSN <= p+n || waits) {
		if r.rewoundMax = q.max; !r.unmeasured() {
			r.samplePSN = 0 // Karn's rule
		}
	}
	track := responseTrack
	if w.op < OpRead {
		track = requestTrack
	}
	if t := &b.tracks[track]; b.probe {
		// If the responder executes the READ only now, it answers later requests afterwards.
		b.probe, t.probing, t.probe = false, track == requestTrack || p < b.executed, t.head
		q.cc.probes++
	} else if q.attr.Selective {
		q.resent = uint16(min(uint64(q.resent)+n, 1<<15-1))
	}
	if b.guessAt == 0 && b.guess >= p && b.guess < p+n {
		b.guessAt = now
	}
	if track == requestTrack {
		b.sentRequest(q.una, p, true)
	} else {
		b.sentRead(q.una, p, n, true)
	}
	b.againAt = now
	q.eng.c.Retransmits++
	q.model().retransmits++
	q.paced(now, uint32(n)*q.mtu.Load())
	if p == q.una {
		r.probeDeadline = Never // the answer takes another round trip
	}
	if r.ackDeadline == Never || r.probeDeadline == Never {
		q.armRetry(now)
	}
}

// loseFrom marks every packet from p on that is not held as lost: p is una after a timeout, an RNR
// NAK, or a NAK without a SelACK on a connection with selective repeat, and otherwise the packet
// that a NAK asks for. It replaces goBack while there is a scoreboard.
func (q *QP) loseFrom(now Time, p uint64) {
	b, r := q.openScoreboard(), &q.rec
	q.eng.lastRewind = now
	r.rewoundTo, r.rewoundMax, r.rewoundAt, r.probed = p, q.max, now, false
	if r.srtt != 0 {
		r.samplePSN = 0 // Karn's rule; see endSample for the first sample
	}
	for at := p; at < q.max; at++ {
		if !b.isHeld(at) && !b.isLost(at) {
			b.markLost(at)
		}
	}
	if p == q.una {
		for i := range b.tracks {
			t := &b.tracks[i]
			t.tail, t.sure, t.probing = t.head, t.head, false
		}
	}
	b.reads = slices.DeleteFunc(b.reads, func(r readRequest) bool { return r.psn >= p })
	b.probe = q.una < q.max && b.isHeld(q.una) // the ACK was lost
	q.eng.schedule(q)
}

// askAgain makes the QP send its oldest packet, whose answer shows what the peer holds. The other
// packets do not wait for the answer.
func (q *QP) askAgain() {
	q.openScoreboard().probe = true
	q.rec.probed = true
	q.eng.schedule(q)
}
