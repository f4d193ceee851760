package qp

import "github.com/gorxe/gorxe/bth"

// Recovery is go-back-N: when a loss is detected, sending resumes at una.
//
// A loss is detected by a sequence NAK; by an implied NAK (a response that skips a READ); by the
// Local ACK Timeout; and, long before it, by a probe: if no response arrives for the time that the
// measured round trips suggest, the oldest packet is sent again and asks for an ACK. Any responder
// answers this duplicate, so probes need no negotiation. They do not count against retry_cnt, which
// limits Local ACK Timeouts in a row, as in verbs.
const (
	minRTO        Time = 100_000     // ns between the last progress and the first probe
	initialRTO    Time = 4_000_000   // before the first round trip is measured
	longestUnsure Time = 100_000_000 // of an upper bound of the round trip
	// maxProbeInterval limits the interval between probes, unless RTTs are long. On a full queue, a
	// QP that starts would lose all of its rare probes. It doubles after slowerProbes probes, so
	// that the last of maxProbes comes after more than 100 ms.
	maxProbeInterval Time = 2_000_000
	slowerProbes          = 8
	maxProbes             = 24    // in a row without progress
	maxNAKs               = 64    // sequence NAKs in a row without progress before the QP fails
	minRewindGap     Time = 2_000 // see repairedRecently
	nakDoubleEvery        = 4     // NAKs
	maxNAKDoublings       = 8     // see repairedRecently
	maxBound         Time = 16_000_000
	maxRNRWait       Time = 100_000_000 // see rnrWait
	rnrDoubleEvery        = 8
	// 2^14 times the shortest timer, 10 us, exceeds maxRNRWait
	maxRNRs = 14 * rnrDoubleEvery
	// stalledRNRs is the number of RNR NAKs in a row after which EventRNR reports that the peer
	// seems to post no receives. With the timer of 0.64 ms that is the default, they take 1.3 s.
	stalledRNRs = 8 * rnrDoubleEvery
)

// recovery holds the round trip estimate and the state of the last retransmission.
type recovery struct {
	naks        uint8
	probes      uint8
	probed      bool  // the last go-back was a probe that may have been necessary
	timeout     uint8 // Attr.Timeout
	retryCnt    uint8 // initial values of retries and rnrRetries after progress
	rnrRetryCnt uint8
	rnrs        uint8 // RNR NAKs in a row, at most maxRNRs
	replies     replies

	ackDeadline   Time // Local ACK Timeout
	probeDeadline Time
	rnrUntil      Time // 0: not waiting

	samplePSN    uint64 // 0: no sample in progress
	sampleAt     Time
	srtt, rttvar Time // RFC 6298
	bound        Time // minimum time before a probe, after unnecessary ones

	timer timer

	// The rest is only used after losses.
	rewoundTo  uint64 // una at the last go-back
	rewoundMax uint64 // max at the last go-back
	rewoundAt  Time
	// counts is nil until the QP counts something. The responder starts a cache line after it.
	counts *QPCounts
}

// init clears everything except what Modify has set and the timer.
func (r *recovery) init() {
	*r = recovery{
		ackDeadline: Never, probeDeadline: Never, timer: r.timer,
		timeout: r.timeout, retryCnt: r.retryCnt, rnrRetryCnt: r.rnrRetryCnt,
		counts: r.counts,
	}
}

// startSample measures one packet at a time. Retransmitted packets are not measured (Karn's rule).
func (r *recovery) startSample(now Time, psn uint64) {
	if r.samplePSN == 0 {
		r.samplePSN, r.sampleAt = psn, now
	}
}

// progress resets what counts failures in a row.
func (r *recovery) progress() { r.naks, r.probes, r.rnrs, r.rnrUntil = 0, 0, 0, 0 }

// endSample ends the RTT sample if its packet, which is before psn, has arrived. It returns the
// round trip, or 0 if none was measured. The round trip of a packet that was retransmitted is only
// an upper bound. It is used until there is a sample, because the first timeout is shorter than
// many round trips.
func (r *recovery) endSample(now Time, psn uint64) Time {
	if r.samplePSN == 0 || psn < r.samplePSN {
		return 0
	}
	rtt := max(now-r.sampleAt, 1)
	ambiguous := r.unmeasured() && r.samplePSN <= r.rewoundMax
	r.samplePSN, r.bound = 0, 0
	switch {
	case ambiguous:
		if rtt = min(rtt, longestUnsure); r.srtt == 0 || rtt < r.srtt {
			r.srtt, r.rttvar = rtt, rtt
		}
		return 0
	case r.unmeasured():
		r.srtt, r.rttvar = rtt, rtt/2
	default:
		d := rtt - r.srtt
		r.srtt += d / 8
		r.rttvar += (max(d, -d) - r.rttvar) / 4
	}
	return rtt
}

// unmeasured reports whether no round trip was measured yet: srtt is 0 or an upper bound, and
// rttvar has the same value.
func (r *recovery) unmeasured() bool { return r.srtt == r.rttvar }

// rto returns the time without progress after which a probe is sent.
func (r *recovery) rto() Time {
	t := max(r.longestRTT(), minRTO, r.bound)
	return min(t<<r.probes, max(maxProbeInterval<<(r.probes/slowerProbes), t<<2))
}

// longestRTT returns a time within which a response should arrive (RFC 6298).
func (r *recovery) longestRTT() Time {
	switch {
	case r.srtt == 0:
		return initialRTO
	case r.unmeasured():
		return r.srtt + r.srtt/4
	}
	return r.srtt + 4*r.rttvar
}

// spuriousProbe handles the answer to a packet that was answered before. If the last probe asked
// for it, the probe was too early, and the next ones come later, until a round trip is measured or
// losses show that probes are needed. Otherwise a round trip that grew beyond the estimate would
// never be measured: every packet would be sent twice, and such packets are no samples (Karn's
// rule).
func (r *recovery) spuriousProbe(psn uint64) {
	if r.probed && psn == r.rewoundTo {
		r.probeTooEarly()
	}
}

// probeTooEarly delays the next probes.
func (r *recovery) probeTooEarly() {
	r.probed = false
	longest := r.longestRTT()
	r.bound = min(2*max(r.bound, longest, minRTO), max(maxBound, 4*longest))
}

// repairedRecently reports whether packet p, which a NAK asks for, is already being retransmitted:
// the NAK arrived less than a round trip after the last go-back. If go-backs to the same packet
// follow each other, they may fill a queue whose delay is not known yet, because retransmitted
// packets are not measured. The time therefore doubles after every nakDoubleEvery of them.
func (q *QP) repairedRecently(now Time, p uint64) bool {
	r := &q.rec
	if q.keepsResponses() {
		b := q.cc.board
		if p < b.executed || b.isLost(p) {
			return true
		}
		if p > r.rewoundTo && p < r.rewoundMax {
			p = r.rewoundTo
		}
	}
	wait := max(q.soonestAnswer(), minRewindGap) << min(r.naks/nakDoubleEvery, maxNAKDoublings)
	return p == r.rewoundTo && now-r.rewoundAt < wait
}

// soonestAnswer returns the time after a transmission before which there is no answer to it. The
// average can be longer than today's round trips, if there were no samples for a while.
func (q *QP) soonestAnswer() Time {
	t := q.rec.srtt * 3 / 4
	if q.win.modeled && q.cc.minRTT != 0 {
		t = min(t, q.cc.minRTT*7/8)
	}
	return t
}

// armRetry starts the timeouts for the first packet in flight.
func (q *QP) armRetry(now Time) {
	r := &q.rec
	if r.ackDeadline == Never && r.timeout != AckNever {
		r.ackDeadline = now + Time(bth.AckTimeout(r.timeout))
	}
	if r.probeDeadline == Never && r.probes < maxProbes {
		r.probeDeadline = now + r.rto()
		if r.probes > 0 { // QPs whose probes were lost in a full queue must not meet there again
			r.probeDeadline += r.rto() * Time(q.qpn%16) / 32
		}
		if q.win.repairing { // other reports show most losses, so there is no hurry
			r.probeDeadline += r.srtt / 2
		}
	}
	q.setRetryTimer()
}

// restartRetry restarts the timeouts after progress, or stops them if nothing is in flight.
func (q *QP) restartRetry(now Time) {
	q.rec.ackDeadline, q.rec.probeDeadline = Never, Never
	if q.una < q.nxt {
		q.armRetry(now)
		return
	}
	q.setRetryTimer()
}

func (q *QP) setRetryTimer() {
	t := min(q.rec.ackDeadline, q.rec.probeDeadline)
	if q.rec.rnrUntil != 0 {
		t = q.rec.rnrUntil
	}
	if q.win.modeled && q.cc.wake != 0 {
		t = min(t, q.cc.wake)
	}
	if t != q.rec.timer.deadline {
		q.eng.setTimer(q, t)
	}
}

// onTimer is called at the QP's deadline.
func (q *QP) onTimer(now Time) {
	r := &q.rec
	if q.win.modeled && q.cc.wake != 0 && q.cc.wake <= now {
		q.cc.wake = 0
		q.eng.schedule(q)
	}
	switch {
	case r.rnrUntil != 0:
		if r.rnrUntil <= now {
			q.endRNRWait(now)
			q.eng.schedule(q)
		}
	case q.una == q.max:
		r.ackDeadline, r.probeDeadline = Never, Never
	case q.eng.classed && q.starved():
		q.delayRetry(now)
	case r.ackDeadline <= now:
		q.ackTimedOut(now)
		return
	case r.probeDeadline <= now:
		if later := q.awaitOtherProbe(now); later > now {
			r.probeDeadline = later
		} else {
			q.probe(now)
		}
	}
	q.rec.timer.deadline = Never
	q.setRetryTimer()
}

// ackTimedOut handles a Local ACK Timeout (IBA 9.7.6.1.3): it retransmits everything, up to
// retry_cnt times.
func (q *QP) ackTimedOut(now Time) {
	q.eng.c.AckTimeouts++
	q.counted().Timeouts++
	if q.retries == 0 {
		q.eng.c.RetryExceeded++
		q.fail(RetryExcErr)
		return
	}
	q.retries--
	q.lossEvent(now, 1)
	q.win.collapse()
	q.rec.ackDeadline, q.rec.probeDeadline = Never, Never
	q.goBack(now)
	q.rec.timer.deadline = Never
}

// probe sends the oldest packet alone. The packets after it wait for the answer.
func (q *QP) probe(now Time) {
	q.eng.c.Probes++
	q.borrowRTT()
	q.noteProbe(now)
	q.rec.probes++
	q.rec.probeDeadline = Never
	if q.attr.Selective {
		q.askAgain()
		return
	}
	q.win.collapse()
	q.goBack(now)
	q.rec.probed = true
}

// lost handles a NAK that reports a gap before packet p. It repairs each gap once, whatever the
// number of NAKs. With selective repeat p is una.
func (q *QP) lost(now Time, p uint64) {
	r := &q.rec
	if r.rnrUntil != 0 || q.repairedRecently(now, p) {
		return
	}
	if r.unmeasured() && r.samplePSN > r.rewoundMax { // the report has made the round trip
		r.srtt = max(now-r.sampleAt, 1)
		r.rttvar = r.srtt / 2
	}
	r.samplePSN = 0
	q.eng.lastGap = now
	r.bound /= 2 // packets are lost, so probes are needed
	if r.naks++; r.naks > maxNAKs {
		q.eng.c.RetryExceeded++
		q.fail(RetryExcErr)
		return
	}
	q.lossEvent(now, 1)
	r.probeDeadline = Never
	if p > q.una { // the responder has executed everything before p
		q.loseFrom(now, p)
		return
	}
	q.goBack(now)
}

// Calm reports whether nothing was retransmitted for a second, neither after a loss nor after an
// RNR NAK, and nothing waits for tokens. Timeouts may then be a few milliseconds late, which can
// only delay the recovery from the first loss.
func (e *Engine) Calm(now Time) bool {
	return now-e.lastRewind >= calmAfter && e.unlimited()
}

// unlimited reports whether no packet waits for tokens of its class.
func (e *Engine) unlimited() bool { return !e.classed || e.nextTokens() == Never }

// CalmWhenBusy is Calm for a host whose CPUs are all in use. Round trips there can take much longer
// than usual, and unnecessary probes are frequent. Only gaps tell that packets get lost.
func (e *Engine) CalmWhenBusy(now Time) bool {
	return !e.RecentGaps(now) && e.unlimited()
}

// RecentGaps reports whether packets were lost recently in either direction. Connections then often
// wait for responses with little in flight, and a side that sleeps delays the other.
func (e *Engine) RecentGaps(now Time) bool { return now-e.lastGap < gapMemory }

// goBack resumes sending at una. With READs or atomics in flight, the scoreboard keeps the
// responses that have arrived or are still to arrive. So READs are only repeated with a scoreboard.
func (q *QP) goBack(now Time) {
	if q.attr.Selective || q.win.repairing || q.rdUsed > 0 {
		q.loseFrom(now, q.una)
		return
	}
	q.eng.lastRewind = now
	r := &q.rec
	r.rewoundTo, r.rewoundMax, r.rewoundAt = q.una, q.max, now
	if !r.unmeasured() {
		r.samplePSN = 0 // Karn's rule
	}
	r.probed = false
	q.nxt, q.lastAsked, q.completionWanted = q.una, q.una, true
	q.rewindCursor()
	q.eng.schedule(q)
}

// resume continues where sending was before a go-back, if that was a probe and the answer shows
// that it was too early. The answer acknowledges packets that were not retransmitted, so the peer
// was only slow (like F-RTO in TCP, RFC 5682). If later packets were lost, a NAK or the next probe
// will show it. With READs in progress or a failed work request, everything is retransmitted.
func (q *QP) resume() bool {
	if !q.rec.probed {
		return false
	}
	s := &q.sq
	first := s.tail.Load()
	for i := first; i != s.started; i++ {
		if w := s.at(i); w.op >= OpRead || w.status != Success {
			return false
		}
	}
	q.rec.probeTooEarly()
	q.nxt = q.max
	next := s.started
	if next != first {
		if w := s.at(next - 1); w.psn+uint64(w.npkts) > q.max { // partly sent
			next--
		}
	}
	q.pointCursor(next)
	return true
}

// rewindCursor points the send cursor at packet nxt, which belongs to the oldest work request.
func (q *QP) rewindCursor() { q.pointCursor(q.sq.tail.Load()) }

// pointCursor points the send cursor at packet nxt, which belongs to work request i.
func (q *QP) pointCursor(i uint32) {
	s := &q.sq
	s.cur, s.curPkt = i, 0
	if s.cur != s.started {
		s.curPkt = uint32(q.nxt - s.at(s.cur).psn)
	}
}

// endRNRWait ends the wait after an RNR NAK, perhaps before the timer's tick. With selective repeat
// there may be nothing to retransmit, because the peer holds everything and the ACK was lost.
func (q *QP) endRNRWait(now Time) {
	if q.rec.rnrUntil == 0 {
		return
	}
	q.rec.rnrUntil = 0
	if q.win.repairing && q.una < q.max {
		q.armRetry(now)
	}
}

// rnrWait handles an RNR NAK (IBA 9.7.5.2.8): the peer had no receive posted. The QP retries after
// the timer of the NAK, which is the minimum. After every rnrDoubleEvery RNR NAKs in a row the wait
// doubles, up to maxRNRWait, so that peers that never post a receive do not slow down other QPs.
// The doubling delays a retry by at most a quarter of the time that the receive took.
func (q *QP) rnrWait(now Time, timer uint8) {
	r := &q.rec
	if r.rnrUntil != 0 {
		return
	}
	if q.rnrRetries == 0 {
		q.eng.c.RNRRetryExceeded++
		q.fail(RNRRetryExcErr)
		return
	}
	if q.rnrRetries != RNRInfinite {
		q.rnrRetries--
	}
	q.goBack(now)
	r.samplePSN = 0  // it would include the wait
	q.win.collapse() // one packet tests whether there is a receive, not a whole window
	least := Time(bth.RNRDelay(timer))
	r.rnrUntil = now + max(least, min(least<<(r.rnrs/rnrDoubleEvery), maxRNRWait))
	if r.rnrs < maxRNRs {
		if r.rnrs++; r.rnrs == stalledRNRs {
			q.eng.event(Event{Kind: EventRNR, QP: q})
		}
	}
	r.ackDeadline, r.probeDeadline = Never, Never
	q.rec.timer.deadline = Never
	q.setRetryTimer()
}
