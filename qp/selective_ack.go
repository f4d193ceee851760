package qp

import (
	"math/bits"
	"slices"

	"github.com/gorxe/gorxe/bth"
)

// selectiveAck handles an ACKNOWLEDGE with selective repeat. It reports false if it is to be
// handled as with go-back-N.
func (q *QP) selectiveAck(now Time, psn uint64, s bth.Syndrome, payload []byte) bool {
	if !q.attr.Selective && !q.win.repairing {
		return false
	}
	ack, ok := bth.ParseSelACK(payload)
	if ok = ok && q.attr.Selective; ok {
		q.reportedDuplicates(now, ack.Duplicates())
		ok = ack.Words() > 0
	}
	if !ok && !q.win.repairing {
		return false
	}
	switch {
	case s.Kind() == bth.SyndromeRNR:
		q.eng.c.RcvdRNR++
		q.counted().RcvdRNR++
	case s.Kind() != bth.SyndromeNAK:
	case s.NAKCode() == bth.NAKPSNSequence:
		q.eng.c.RcvdSeqNAK++
		q.counted().RcvdSeqNAK++
	default:
		q.eng.c.RcvdErrNAK++
	}
	if !ok {
		ack = nil // the peer holds nothing: it has no memory
	}
	q.handleSelectiveAck(now, psn, s, ack)
	return true
}

// handleSelectiveAck processes an ACKNOWLEDGE while a scoreboard is open. psn is within [una, max).
// ack is empty if the packet carries no SelACK.
func (q *QP) handleSelectiveAck(now Time, psn uint64, s bth.Syndrome, ack bth.SelACK) {
	b := q.openScoreboard()
	end := psn
	if s.Kind() == bth.SyndromeACK {
		end++
	}
	q.executedTo(now, b, end)
	if len(ack) > 0 {
		q.reportedHeld(now, b, ack)
	}
	if q.settle(now); q.State() == Err {
		return
	}
	switch s.Kind() {
	case bth.SyndromeRNR:
		q.refusedPacket(psn)
		if q.rnrRetries == 0 && q.una < psn {
			q.eng.c.RNRRetryExceeded++
			q.failAt(psn, RNRRetryExcErr)
			return
		}
		q.rnrWait(now, s.RNRTimer())
	case bth.SyndromeNAK:
		if st, fatal := nakStatus[s.NAKCode()]; fatal {
			q.failAt(psn, st)
		} else if len(ack) > 0 {
			return
		} else if q.attr.Selective {
			q.lost(now, q.una)
		} else if psn >= q.una {
			q.lost(now, psn)
		}
	}
}

// keepsResponses reports whether there is a scoreboard although the peer does not support selective
// repeat. Such a peer sends READ responses like any other, but drops request packets after a gap.
func (q *QP) keepsResponses() bool { return q.win.repairing && !q.attr.Selective }

// impliedNAK handles an ACKNOWLEDGE of a peer without selective repeat that skips responses, which
// opens the scoreboard (IBA 9.7.6.1). They are lost, unless responses have been late before.
func (q *QP) impliedNAK(now Time, psn uint64, s bth.Syndrome) {
	b := q.openScoreboard()
	if q.tolerance == minTolerance {
		end := psn
		if s.Kind() == bth.SyndromeACK {
			end++
		}
		q.loseResponses(now, b, q.una, end)
	}
	q.handleSelectiveAck(now, psn, s, nil)
}

// failAt fails the work request of packet p. Earlier ones complete first: the peer has executed
// them, but responses to READs may be missing.
func (q *QP) failAt(p uint64, st Status) {
	if q.openScoreboard(); p >= q.una {
		q.halt(q.sq.at(q.workRequest(p)), st)
	}
}

// refusedPacket handles an RNR NAK: the peer does not hold the packet any more.
func (q *QP) refusedPacket(p uint64) {
	if b := q.openScoreboard(); p >= q.una && b.isHeld(p) && *b.slot(p)&slotResponse == 0 {
		b.heldBits[b.at(p)] &^= 1 << (p % 64)
		b.held--
	}
}

// executedTo records that the responder has executed all requests before end. It delivers the SENDs
// and WRITEs among them. READs and atomics are only complete with their responses.
func (q *QP) executedTo(now Time, b *scoreboard, end uint64) {
	q.checkProbe(b, end)
	for p := max(b.executed, q.una); p < end; p++ {
		if *b.slot(p)&slotResponse == 0 {
			q.deliver(now, b, p)
		}
	}
	b.early = false
	if end > b.executed {
		b.executed = end
		b.dropReads()
	}
}

// checkProbe finds out whether an ACK of all packets before end answers a probe that was too early:
// it acknowledges a packet that was sent once, before the probe, and that the peer did not report
// (like F-RTO, RFC 5682). So no packet needs to be lost.
func (q *QP) checkProbe(b *scoreboard, end uint64) {
	t, next := &b.tracks[requestTrack], q.una+1
	if !t.probing || next >= end || b.isHeld(next) {
		return
	}
	if v := *b.slot(next); v&(slotAgain|slotResponse) == 0 && t.since(v>>slotBits) > t.since(t.probe) {
		t.probing, b.early = false, true
		q.rec.probeTooEarly()
	}
}

// dropReads removes the READ requests that the responder has executed.
func (b *scoreboard) dropReads() {
	keep := b.reads[:0]
	for _, r := range b.reads {
		switch {
		case r.psn >= b.executed:
			keep = append(keep, r)
		case !r.again:
			b.tracks[requestTrack].arrived(r.serial)
		}
	}
	b.reads = keep
}

// reportedHeld processes the bitmap of a SelACK. Bits of packets that were not sent, of
// acknowledged ones and of READ responses are ignored.
func (q *QP) reportedHeld(now Time, b *scoreboard, ack bth.SelACK) {
	start := extend(q.una, ack.Start())
	q.readsHeld(b, start, ack)
	for i := range ack.Words() {
		p := start + 32*uint64(i)
		if p+32 <= q.una || p >= q.max {
			continue
		}
		word := uint64(bits.Reverse32(ack.Word(i)))
		if p < q.una {
			word, p = word>>(q.una-p), q.una
		}
		if left := q.max - p; left < 32 {
			word &= 1<<left - 1
		}
		// The word covers at most two words of the scoreboard.
		word &^= b.heldBits[b.at(p)] >> (p % 64)
		if p%64 > 32 {
			word &^= b.heldBits[b.at(p+32)] << (64 - p%64)
		}
		for ; word != 0; word &= word - 1 {
			at := p + uint64(bits.TrailingZeros64(word))
			if *b.slot(at)&slotResponse == 0 {
				q.deliver(now, b, at)
			}
		}
	}
}

// readsHeld finds the requests of READs that the peer holds.
func (q *QP) readsHeld(b *scoreboard, start uint64, ack bth.SelACK) {
	for i := range b.reads {
		r := &b.reads[i]
		if at := r.psn - start; r.psn >= start && !r.held && at < uint64(ack.Bits()) &&
			ack.Word(int(at/32))>>(31-at%32)&1 != 0 {
			r.held = true
			if !r.again {
				b.tracks[requestTrack].arrived(r.serial)
			}
		}
	}
}

// deliver records that packet p, which is in flight, has arrived: at the peer, or the response from
// there.
func (q *QP) deliver(now Time, b *scoreboard, p uint64) {
	if b.isHeld(p) {
		return
	}
	if b.isLost(p) {
		b.unmarkLost(p)
	}
	b.heldBits[b.at(p)] |= 1 << (p % 64)
	b.held++
	b.news++
	if p == b.guess {
		if b.guess = 0; b.guessAt != 0 && now-b.guessAt < q.soonestAnswer() {
			q.impatient(now, 1)
		}
	}
	v := *b.slot(p)
	t, serial := &b.tracks[v&slotResponse], v>>slotBits
	if v&slotAgain == 0 {
		if late := t.arrived(serial); late > 0 {
			q.late(late)
		}
		return
	}
	// Perhaps an earlier transmission arrived, which says nothing about those after it, unless all
	// retransmissions were long ago. If that seems to happen again before a round trip is measured,
	// round trips have become shorter.
	if r := &q.rec; b.early ||
		((r.srtt == 0 || now-b.againAt < q.soonestAnswer()) && r.bound == 0) {
		if t.probing && serial == t.probe&serialMask {
			t.probing = false
			q.rec.probeTooEarly()
		}
		return
	}
	if t.probing && t.since(serial) <= t.since(t.probe) {
		t.probing, t.sure = false, t.probe
	}
	// The responder sends repeated READ responses before those of later requests.
	if v&slotResponse == 0 {
		t.arrived(serial)
	}
}

// since returns how many transmissions ago a serial of 30 or 32 bits was assigned.
func (t *track) since(serial uint32) uint32 { return (t.head - serial) & serialMask }

// arrived records that a transmission has arrived. It returns how many later ones arrived before
// it.
func (t *track) arrived(serial uint32) (late uint32) {
	next := t.head - t.since(serial) + 1
	if d := int32(next - t.high); d < 0 {
		return uint32(-d)
	}
	t.high = next
	return 0
}

// settle draws the conclusions from what was delivered: it completes work requests, finds lost
// packets and updates window and timers. It closes a scoreboard that is not needed any more.
func (q *QP) settle(now Time) {
	b, from := q.cc.board, q.una
	if !q.advance(b) {
		return
	}
	q.decayTolerance()
	lost := q.findLost(b, requestTrack) + q.findLost(b, responseTrack)
	if news := b.news; news > 0 || q.una > from {
		b.news, b.probe = 0, false
		q.delivered(uint64(news))
		q.arrivedSome(now, b, from)
	}
	if lost > 0 {
		q.eng.lastGap, q.eng.lastRewind = now, now
		q.rec.bound /= 2 // packets are lost, so probes are needed
		if b.lostAgain && now-q.cc.epoch > q.rec.srtt {
			// The window is too large even for the repairs, so the next reduction does not wait
			// until all of them have arrived.
			q.win.recover = q.una
		}
		b.lostAgain = false
		q.lossEvent(now, uint64(lost))
	}
	if b.held == 0 && b.lost == 0 && !b.probe && !b.halted && q.una >= b.againEnd &&
		!slices.ContainsFunc(b.reads, func(r readRequest) bool { return r.held }) {
		q.closeScoreboard()
	}
	if q.win.repairing || q.sq.cur != q.sq.head.Load() {
		q.eng.schedule(q)
	}
	q.checkHalted()
	q.checkDrained()
}

// arrivedSome updates the timers after packets were delivered. from is una before.
func (q *QP) arrivedSome(now Time, b *scoreboard, from uint64) {
	r := &q.rec
	reached := q.una
	if s := r.samplePSN; s > q.una && s <= q.max && (b.isHeld(s-1) || r.srtt == 0) {
		if !b.isHeld(s - 1) { // it is lost, but later ones have made the round trip
			r.rewoundMax = q.max
		}
		reached = s
	}
	if s := r.samplePSN; s != 0 && s <= q.una && b.repeated(from, s) {
		// The ACK answers a retransmission. The packet of the sample may have arrived long ago.
		if r.rewoundMax = q.max; !r.unmeasured() {
			r.samplePSN = 0
		}
	}
	q.reached(now, reached)
	if q.una > from {
		q.rdPop()
		q.retries, q.rnrRetries = r.retryCnt, r.rnrRetryCnt
		r.progress()
	}
	if r.rnrUntil == 0 {
		r.probes = 0
		q.restartRetry(now)
	}
}

// repeated reports whether one of the packets [from, to) was retransmitted.
func (b *scoreboard) repeated(from, to uint64) bool {
	for p := from; p < min(to, b.againEnd); p++ {
		if *b.slot(p)&slotAgain != 0 {
			return true
		}
	}
	return false
}

// advance moves una to the first packet that is not complete and retires work requests. It reports
// whether the QP still works.
func (q *QP) advance(b *scoreboard) bool {
	s, from := &q.sq, q.una
	for s.tail.Load() != s.started {
		w := s.at(s.tail.Load())
		if w.op.local() { // it has failed
			break
		}
		end := w.psn + uint64(w.npkts)
		to := min(end, q.max)
		if w.op < OpRead {
			to = min(to, b.executed)
		} else {
			to = b.heldRun(q.una, to)
		}
		q.una = max(q.una, to)
		if q.una != end {
			break
		}
		b.forget(from, q.una)
		from = q.una
		if q.retire(Success); q.State() == Err {
			return false
		}
		if s.locals > 0 {
			if q.retireLocals(); q.State() == Err {
				return false
			}
		}
	}
	b.forget(from, q.una)
	return true
}
