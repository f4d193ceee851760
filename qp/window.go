package qp

// The window bounds the packets in flight of one RC QP. It adapts as TCP's does (additive increase,
// multiplicative decrease): with go-back-N a loss costs a whole window, so on a lossy path a small
// one is faster, and on a clean path a large one hides the round trip.
const (
	minWindow    = 2 // of Config.MaxWindow
	lossWindow   = 4 // losses take nothing below: with fewer packets none may be left to tell of a gap
	firstWindow  = 64
	maxMaxWindow = 1 << 14
)

type window struct {
	recover   uint64 // a loss below this packet belongs to the one already counted
	cwnd, max uint16 // packets, maxMaxWindow at most
	threshold uint16 // below it growth is exponential
	credit    uint16 // packets acknowledged since the last linear step
	probing   bool   // one packet at a time until there is news
}

func (w *window) init(limit uint32) {
	*w = window{cwnd: uint16(min(firstWindow, limit)), max: uint16(limit), threshold: uint16(limit)}
}

// size is how many packets may be in flight.
func (w *window) size() uint32 {
	if w.probing {
		return 1
	}
	return uint32(w.cwnd)
}

func (w *window) acked(n uint32) {
	w.probing = false
	n = min(n, maxMaxWindow) // sums of two stay within 16 bits
	if w.cwnd < w.threshold {
		w.cwnd = min(w.cwnd+uint16(n), w.threshold, w.max)
		return
	}
	if w.credit += uint16(n); w.credit >= w.cwnd {
		w.credit = 0
		w.cwnd = min(w.cwnd+1, w.max)
	}
}

// loss halves the window, once for each window of packets.
func (w *window) loss(una, highest uint64) {
	if una < w.recover {
		return
	}
	w.recover = highest
	w.cwnd = max(w.cwnd/2, min(lossWindow, w.max))
	w.threshold = w.cwnd
	w.credit = 0
}

// collapse is for silence: one packet finds out whether the peer is there.
func (w *window) collapse() { w.probing = true }
