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
	// of the rate to which the window limits the QP: it must remain the limit
	pacingGain  = 1.25
	startupGain = 2 // while growth is exponential
)

// setPace updates the rate after a change of the window or of the RTT estimate. Nothing is paced
// until the QP has lost a packet, has received a CNP or needs more than DefaultWindow packets.
func (q *QP) setPace() {
	c, w := q.cc, &q.win
	srtt := q.rec.srtt
	if srtt < minPacedRTT || (c.epoch == 0 && w.cwnd <= DefaultWindow) ||
		w.algorithm == CongestionNone {
		c.perKB = 0
		return
	}
	gain := pacingGain
	if w.cwnd < w.threshold {
		gain = startupGain
	}
	bytes := gain * float64(w.cwnd) * float64(q.mtu.Load())
	c.perKB = max(Time(float64(srtt)*1024/bytes), 1)
	c.burst = min(max(srtt/8, minBurst), maxBurst)
}

// paceUntil returns when the QP may send a packet; now if at once.
func (q *QP) paceUntil(now Time) Time {
	if !q.win.modeled || q.cc.perKB == 0 {
		return now
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
