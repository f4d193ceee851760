package qp

import "github.com/gorxe/gorxe/bth"

// Recovery is go-back-N: whatever shows that a packet was lost, sending resumes at una.
//
// Four things show it: a sequence NAK; an implied NAK (an answer that jumps over a READ); the Local
// ACK Timeout; and, long before that one, the probe: when no answer came for the time that the
// measured round trips suggest, the oldest packet goes out once more and asks for an ACK. Probes
// are duplicates that any responder answers, so they need no agreement; they do not count against
// retry_cnt, which counts Local ACK Timeouts in a row, as verbs has it.
const (
	minRTO         Time = 100_000   // ns between last news and first probe
	initialRTO     Time = 4_000_000 // before the first round trip was measured
	maxProbes           = 8         // in a row without news
	maxNAKs             = 64        // sequence NAKs in a row without progress, then the peer is broken
	minRewindGap   Time = 2_000     // see recovery.stale
	maxRewinds          = 3         // see recovery.ambiguous
	maxBound       Time = 16_000_000
	maxRNRWait     Time = 100_000_000 // see rnrWait
	rnrDoubleEvery      = 8
	maxRNRs             = 14 * rnrDoubleEvery // 2^14 times the least timer, 10 us, is more than maxRNRWait
)

// recovery remembers what is known of round trips and of the last retransmission.
type recovery struct {
	rewinds     uint8 // go-backs since a whole window was last acknowledged
	naks        uint8
	probes      uint8
	probed      bool  // the last go-back was a probe, which has not turned out to be needless
	timeout     uint8 // Attr.Timeout
	retryCnt    uint8 // what retries and rnrRetries begin with again after progress
	rnrRetryCnt uint8
	rnrs        uint8 // RNR NAKs in a row; counts no further than needed

	ackDeadline   Time // Local ACK Timeout
	probeDeadline Time
	rnrUntil      Time // 0: not waiting

	samplePSN    uint64 // 0: no sample under way
	sampleAt     Time
	srtt, rttvar Time // RFC 6298
	bound        Time // no probe comes earlier, since those that did were needless

	timer timer

	// Only losses look at the rest.
	rewoundTo  uint64 // una at the last go-back
	rewoundMax uint64 // max at the last go-back
	rewoundAt  Time
	readEnd    uint64 // end of the last part of a READ part that was asked for again
}

// init forgets everything but what Modify has set and the place in the wheel.
func (r *recovery) init() {
	*r = recovery{
		ackDeadline: Never, probeDeadline: Never, timer: r.timer,
		timeout: r.timeout, retryCnt: r.retryCnt, rnrRetryCnt: r.rnrRetryCnt,
	}
}

// startSample times one packet at a time; retransmitted ones tell nothing (Karn's rule).
func (r *recovery) startSample(now Time, psn uint64) {
	if r.samplePSN == 0 {
		r.samplePSN, r.sampleAt = psn, now
	}
}

func (r *recovery) progress(now Time, una uint64) {
	r.naks, r.probes, r.rnrs, r.rnrUntil = 0, 0, 0, 0
	if r.samplePSN == 0 || una < r.samplePSN {
		return
	}
	r.samplePSN, r.bound = 0, 0
	rtt := max(now-r.sampleAt, 1)
	if r.srtt == 0 {
		r.srtt, r.rttvar = rtt, rtt/2
		return
	}
	d := rtt - r.srtt
	r.srtt += d / 8
	r.rttvar += (max(d, -d) - r.rttvar) / 4
}

// rto is how long no news is no news yet.
func (r *recovery) rto() Time {
	t := initialRTO
	if r.srtt != 0 {
		t = max(r.srtt+4*r.rttvar, minRTO)
	}
	return max(t, r.bound) << r.probes
}

// needless is called for the answer to a packet that was answered before. If it is the one that the
// last probe asked for, the probe came too early, and the next ones come later, until a round trip
// is measured again or losses show that probes are needed. Without this, one that has grown past the estimate would never be measured:
// everything would be sent twice, and what is sent twice is no sample (Karn's rule).
func (r *recovery) spuriousProbe(psn uint64) {
	if r.probed && psn == r.rewoundTo {
		r.probeTooEarly()
	}
}

// tooEarly is said of the last probe.
func (r *recovery) probeTooEarly() {
	r.probed = false
	r.bound = min(2*max(r.bound, r.srtt+4*r.rttvar, minRTO), maxBound)
}

// stale tells whether news of a loss speaks of packets that have been sent again already: it came
// less than a round trip after that.
func (r *recovery) stale(now Time, una uint64) bool {
	return una == r.rewoundTo && now-r.rewoundAt < max(r.srtt*3/4, minRewindGap)
}

// ambiguous tells whether an answer to packet psn that jumps over a READ may have been sent before
// the last go-back, in which that READ was asked for anew. To believe it would be to ask once more for
// each such answer, and the answers to all that could fill the path until no progress is left. So it
// has to be later than a round trip, and than more of them while one go-back follows another.
func (r *recovery) ambiguous(now Time, psn uint64) bool {
	wait := initialRTO
	if r.srtt != 0 {
		wait = (r.srtt + 4*r.rttvar) << r.rewinds
	}
	return psn < r.rewoundMax && now-r.rewoundAt < wait
}

// armRetry starts the time-outs for the first packet in flight.
func (q *QP) armRetry(now Time) {
	r := &q.rec
	if r.ackDeadline == Never && r.timeout != AckNever {
		r.ackDeadline = now + Time(bth.AckTimeout(r.timeout))
	}
	if r.probeDeadline == Never && r.probes < maxProbes {
		r.probeDeadline = now + r.rto()
	}
	q.setRetryTimer()
}

// restartRetry starts them anew after news, or stops them with nothing in flight.
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
	if t != q.rec.timer.deadline {
		q.eng.setTimer(q, t)
	}
}

// onTimer is called at the QP's deadline.
func (q *QP) onTimer(now Time) {
	r := &q.rec
	switch {
	case r.rnrUntil != 0:
		if r.rnrUntil <= now {
			r.rnrUntil = 0
			q.eng.schedule(q)
		}
	case q.una == q.max:
		r.ackDeadline, r.probeDeadline = Never, Never
	case r.ackDeadline <= now:
		q.ackTimedOut(now)
		return
	case r.probeDeadline <= now:
		q.probe(now)
	}
	q.rec.timer.deadline = Never
	q.setRetryTimer()
}

// ackTimedOut is a Local ACK Timeout (IBA 9.7.6.1.3): everything goes again, retry_cnt times.
func (q *QP) ackTimedOut(now Time) {
	q.eng.c.AckTimeouts++
	if q.retries == 0 {
		q.eng.c.RetryExceeded++
		q.fail(RetryExcErr)
		return
	}
	q.retries--
	q.win.loss(q.una, q.max)
	q.win.collapse()
	q.rec.ackDeadline, q.rec.probeDeadline = Never, Never
	q.goBack(now)
	q.rec.timer.deadline = Never
}

// probe sends the oldest packet alone; what follows it waits for the answer.
func (q *QP) probe(now Time) {
	q.eng.c.Probes++
	q.rec.probes++
	q.rec.probeDeadline = Never
	q.win.collapse()
	q.goBack(now)
	q.rec.probed = true
}

// lost is news of a gap. One gap is repaired once, however many answers tell of it.
func (q *QP) lost(now Time) {
	r := &q.rec
	if r.rnrUntil != 0 || r.stale(now, q.una) {
		return
	}
	if r.srtt == 0 && r.samplePSN != 0 { // bad news has made the round trip too
		r.srtt = max(now-r.sampleAt, 1)
		r.rttvar = r.srtt / 2
	}
	q.eng.lastGap = now
	r.bound /= 2 // packets are lost, so probes are needed
	if r.naks++; r.naks > maxNAKs {
		q.eng.c.RetryExceeded++
		q.fail(RetryExcErr)
		return
	}
	q.win.loss(q.una, q.max)
	r.probeDeadline = Never
	q.goBack(now)
}

// calm is how long nothing may have been sent again for time-outs to be less than exact: see Engine.Calm.
const calmAfter Time = 1_000_000_000

// Calm tells whether nothing had to be sent again for a second, because of a loss or because a peer was not ready. Then it does no
// harm if a time-out comes a few milliseconds late: that is what the first loss after a calm may cost.
func (e *Engine) Calm(now Time) bool { return now-e.lastRewind >= calmAfter }

// gapsFor is how long after a gap more of them are expected: see Engine.Gaps.
const gapMemory Time = 10_000_000

// Gaps tells whether packets have been lost on the way of late, to this end or from it. Then connections wait for answers again and again,
// with little under way, and each side that falls asleep meanwhile makes the other wait for its waking up.
func (e *Engine) RecentGaps(now Time) bool { return now-e.lastGap < gapMemory }

// goBack resumes sending at una.
func (q *QP) goBack(now Time) {
	q.eng.lastRewind = now
	r := &q.rec
	if q.una >= r.rewoundMax {
		r.rewinds = 0
	} else if r.rewinds < maxRewinds {
		r.rewinds++
	}
	r.rewoundTo, r.rewoundMax, r.rewoundAt, r.samplePSN = q.una, q.max, now, 0
	r.probed = false
	q.nxt, q.lastAsked, q.completionWanted = q.una, q.una, true
	q.rdHead, q.rdUsed = 0, 0
	q.rewindCursor()
	q.eng.schedule(q)
}

// resume goes on sending where it was before a go-back, if that was a probe and the answer shows that it came too early: it acknowledges
// packets that have not been sent again, so the peer had the probed one, and was only slow (TCP's F-RTO, RFC 5682). What is behind is taken to
// have come as well: if not, a NAK or the next probe says so. With READs under way, or a work request that failed, all goes again.
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
		if w := s.at(next - 1); w.psn+uint64(w.npkts) > q.max { // half out
			next--
		}
	}
	q.pointCursor(next)
	return true
}

// rewindCursor points the send cursor at packet nxt, which belongs to the oldest work request.
func (q *QP) rewindCursor() { q.pointCursor(q.sq.tail.Load()) }

// pointCursor points it there, if nxt belongs to work request i.
func (q *QP) pointCursor(i uint32) {
	s := &q.sq
	s.cur, s.curPkt = i, 0
	if s.cur != s.started {
		s.curPkt = uint32(q.nxt - s.at(s.cur).psn)
	}
}

// rnrWait is an RNR NAK (IBA 9.7.5.2.8): the peer had no receive posted; try again after its timer. That is the least time: after every rnrPatience
// of them in a row the wait doubles, up to maxRNRWait, so that peers which never post a receive cost the other QPs nothing. A receive that
// comes at last is found later by a quarter of the time that it took, at most.
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
	q.win.collapse() // one packet asks whether there is a receive by now, not a window of them
	least := Time(bth.RNRDelay(timer))
	r.rnrUntil = now + max(least, min(least<<(r.rnrs/rnrDoubleEvery), maxRNRWait))
	r.rnrs = min(r.rnrs+1, maxRNRs)
	r.ackDeadline, r.probeDeadline = Never, Never
	q.rec.timer.deadline = Never
	q.setRetryTimer()
}
