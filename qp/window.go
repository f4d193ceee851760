package qp

// The window limits the packets in flight of an RC QP. Like TCP's window, it grows additively and
// shrinks multiplicatively. With go-back-N a loss costs a whole window, so a lossy path needs a
// small one, while a large one hides the round trip of a clean path.
const (
	minWindow    = 2 // smallest Config.MaxWindow
	lossWindow   = 4 // minimum after losses: with fewer packets, none may be left to reveal a gap
	firstWindow  = 64
	maxMaxWindow = 1 << 14
)

type window struct {
	recover   uint64 // losses before this packet were already counted
	cwnd, max uint16 // packets, at most maxMaxWindow
	threshold uint16 // growth is exponential below it
	credit    uint16 // packets acknowledged since the last linear step
	probing   bool   // one packet at a time until there is an answer
}

func (w *window) init(limit uint32) {
	*w = window{cwnd: uint16(min(firstWindow, limit)), max: uint16(limit), threshold: uint16(limit)}
}

// size returns how many packets may be in flight.
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

// loss halves the window, once per window of packets.
func (w *window) loss(una, highest uint64) {
	if una < w.recover {
		return
	}
	w.recover = highest
	w.cwnd = max(w.cwnd/2, min(lossWindow, w.max))
	w.threshold = w.cwnd
	w.credit = 0
}

// collapse limits the window to one packet until the peer answers.
func (w *window) collapse() { w.probing = true }
