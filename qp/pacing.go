package qp

// pacer is a token bucket in the form of a virtual schedule: at is when the bucket is full again.
// Packets may be sent up to burst before it. The burst covers the ticks of the timer wheel, which
// the QP waits for when the bucket is empty.
type pacer struct {
	at    Time
	wake  Time // when the QP, which waits, may send again; 0: it does not wait
	burst Time
	perKB Time // duration of 1024 bytes, ns; 0: no pacing
}

const (
	minPacedRTT Time = 4 << tickShift // with shorter round trips, ticks are too coarse
	minBurst    Time = 2 << tickShift
	maxBurst    Time = 1_000_000
	minIdle     Time = 1_000_000 // a pause that is worth noticing
	// of the rate to which the window limits the QP: it must remain the limit
	pacingGain  = 1.25
	startupGain = 2 // while growth is exponential
)

// setPace updates the rate after a change of the window or of the RTT estimate. Nothing is paced
// until the QP has lost a packet, has received a CNP or needs more than DefaultWindow packets.
func (q *QP) setPace() {
	c, w := q.cc, &q.win
	srtt := q.rec.srtt
	c.perKB, c.burst = 0, minBurst
	if srtt >= minPacedRTT && !q.rec.unmeasured() && (c.epoch != 0 || w.cwnd > DefaultWindow) &&
		w.algorithm != CongestionNone {
		gain := pacingGain
		if w.cwnd < w.threshold {
			gain = startupGain
		}
		bytes := gain * float64(w.cwnd) * float64(q.mtu.Load())
		c.perKB = max(Time(float64(srtt)*1024/bytes), 1)
		c.burst = min(max(srtt/8, minBurst), maxBurst)
	}
	if c.control != nil && c.control.limits {
		c.perKB = max(c.perKB, Time(1024/c.control.current), 1)
	}
}

// reduceRate handles a CNP with CongestionDCQCN. The first one finds the rate of the window, as
// that of a NIC is the line rate.
func (q *QP) reduceRate(now Time) {
	c := q.cc
	if c.control == nil {
		c.control = new(rateControl)
	}
	rate := 0.0
	if q.rec.srtt > 0 {
		rate = float64(q.win.cwnd) * float64(q.mtu.Load()) / float64(q.rec.srtt)
	}
	c.control.cnp(now, &q.eng.dcqcn, rate)
	q.setPace()
}

// paceUntil returns when the QP may send a packet; now if at once.
func (q *QP) paceUntil(now Time) Time {
	if !q.win.modeled || q.cc.perKB == 0 {
		return now
	}
	if r := q.cc.control; r != nil && r.limits {
		r.advance(now, &q.eng.dcqcn)
		q.setPace()
	}
	return max(q.cc.at-q.cc.burst, now)
}

// paced accounts for n bytes that were sent or requested.
func (q *QP) paced(now Time, n uint32) {
	if !q.win.modeled || q.cc.perKB == 0 {
		return
	}
	c := q.cc
	c.at = max(c.at, now) + Time(n)*c.perKB>>10
	if c.control != nil && c.control.limits {
		c.control.sent(float64(n), &q.eng.dcqcn)
	}
}

// paceable returns how many packets of n bytes may be sent now.
func (q *QP) paceable(now Time, n uint32) int {
	c := q.cc
	left := now + c.burst - max(c.at, now)
	if left < 0 || c.control != nil && c.control.limits { // the rate changes with each packet
		return 0
	}
	return int(left/max(Time(n)*c.perKB>>10, 1)) + 1
}

// afterIdle makes the window smaller after a pause: packets at the rate of the acknowledgments do
// not disturb others, a burst of a whole window would (RFC 2861). A paced QP sends no burst, and
// keeps the window until the model is old.
func (q *QP) afterIdle(now Time) {
	w := &q.win
	idle := now - q.rec.sampleAt // the last packets asked for an ACK, and started a sample
	if w.cwnd <= firstWindow || w.algorithm == CongestionNone ||
		idle < max(minIdle, 4*q.rec.longestRTT()) {
		return
	}
	if w.modeled {
		c := q.cc
		if c.epoch != 0 {
			c.epoch = min(c.epoch+idle, now)
		}
		if c.perKB != 0 && idle < minRTTAge {
			return
		}
	}
	w.threshold = max(w.threshold, w.cwnd*3/4)
	w.cwnd = firstWindow
}

// awaitPace reports whether the QP must wait before it sends, and sets its timer.
func (q *QP) awaitPace(now Time) bool {
	t := q.paceUntil(now)
	if t <= now {
		return false
	}
	q.cc.wake = t
	q.setRetryTimer()
	return true
}
