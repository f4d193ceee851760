package qp

// The window limits the packets in flight of an RC QP. Up to DefaultWindow packets it grows with
// every acknowledgment and needs no further state. Beyond, or after a loss or a CNP, a model of the
// path decides: see congestion.
const (
	minWindow    = 2           // smallest Config.MaxWindow
	maxMaxWindow = maxPSNCount // largest Config.MaxWindow (IBA 9.7.3.1)
	firstWindow  = 64          // window of a new QP
	lossWindow   = 4           // minimum after losses: fewer packets may not reveal a gap
	// selectiveLossWindow is lossWindow with selective repeat, whose probes cost little.
	selectiveLossWindow = 2
)

type window struct {
	recover   uint64     // losses before this packet were already counted
	cwnd      uint32     // packets
	threshold uint32     // growth is exponential below it
	credit    uint32     // acknowledged packets times growth that did not enlarge the window yet
	probing   bool       // one packet at a time until there is an answer
	algorithm Congestion // see Attr.Congestion
	modeled   bool       // QP.cc is set
	repairing bool       // the scoreboard is open: congestion.board
}

// init sets the window of a QP that has not sent anything. limit is its maximum, in packets.
func (w *window) init(limit uint32, a Congestion) {
	*w = window{cwnd: min(firstWindow, limit), threshold: limit, algorithm: a, modeled: w.modeled,
		repairing: w.repairing}
	if a == CongestionNone {
		w.cwnd = limit
	}
}

// initWindow sets the first window of a QP, or that after a change of the algorithm.
func (q *QP) initWindow() {
	limit := q.eng.maxWindow
	if q.attr.Congestion == CongestionNone {
		limit = q.eng.fixedWindow
	}
	q.win.init(limit, q.attr.Congestion)
}

// setCongestion selects the algorithm. A QP that uses another one starts with the first window.
func (q *QP) setCongestion(a Congestion) {
	if q.attr.Congestion == a {
		return
	}
	q.attr.Congestion = a
	q.changeECT()
	if q.State() >= RTS {
		recover := q.win.recover
		q.initWindow()
		q.win.recover = recover
		if q.win.modeled {
			q.cc.init()
			q.setPace()
			q.eng.schedule(q) // it may have waited for its old rate
		}
	}
}

// size returns how many packets may be in flight.
func (w *window) size() uint32 {
	if w.probing {
		return 1
	}
	return w.cwnd
}

// ackInterval returns after how many packets one must ask for an ACK. If the window was made
// smaller, ACKs are more frequent, so that few packets wait for each.
func (w *window) ackInterval() uint64 {
	if w.modeled && w.cwnd >= w.threshold {
		return uint64(min(ackInterval, (w.size()+7)/8))
	}
	return uint64(min(ackInterval, (w.size()+1)/2))
}

// grow enlarges the window after n packets were acknowledged, up to limit: by n below the
// threshold, otherwise by growth/growthUnit for each window of packets.
func (w *window) grow(n, growth, limit uint32) {
	if w.cwnd >= limit {
		return
	}
	if w.cwnd < w.threshold {
		w.cwnd = min(w.cwnd+min(n, limit), w.threshold, limit)
		return
	}
	sum := uint64(w.credit) + uint64(n)*uint64(growth)
	whole := growthUnit * uint64(w.cwnd)
	step := min(sum/whole, uint64(limit-w.cwnd))
	w.credit = uint32(sum % whole)
	w.cwnd += uint32(step)
}

// shrink makes the window smaller. Growth is not exponential until the window is made larger by
// other means.
func (w *window) shrink(size uint32) {
	w.cwnd = min(w.cwnd, size)
	w.threshold, w.credit = w.cwnd, 0
}

// collapse limits the window to one packet until the peer answers.
func (w *window) collapse() { w.probing = true }
