package netsim

import "slices"

// tcpReceiver is the receiving side of a TCP flow.
type tcpReceiver struct {
	total   uint64 // segments that arrived in order
	expect  uint32 // the next of them
	held    []span // segments after it that have arrived, in order
	recent  [maxBlocks]uint32
	recents int   // entries of recent: segments in the spans to report, latest first
	pending int   // segments in order that are not acknowledged
	ackAt   int64 // when they must be
	echo    int64 // time stamp of the first of them
}

// receive takes in a segment. It returns true if an acknowledgment must be sent at once.
func (r *tcpReceiver) receive(now int64, f *tcpFrame) bool {
	if r.pending == 0 {
		r.echo, r.ackAt = f.sent, now+delayedAck
	}
	switch {
	case f.seq == r.expect:
		gap := len(r.held) > 0
		r.advance(f.seq + 1)
		r.pending++
		return gap || r.pending >= 2 // RFC 5681, section 4.2
	case f.seq > r.expect:
		r.hold(f.seq)
		r.remember(f.seq)
	}
	return true // out of order, or received before
}

// advance moves expect, over held segments too.
func (r *tcpReceiver) advance(to uint32) {
	if len(r.held) > 0 && r.held[0].first <= to {
		to = max(to, r.held[0].last)
		r.held = slices.Delete(r.held, 0, 1)
	}
	r.total += uint64(to - r.expect)
	r.expect = to
}

// find returns the index of the span that contains seq, or where it would be.
func (r *tcpReceiver) find(seq uint32) (int, bool) {
	return slices.BinarySearchFunc(r.held, seq, func(s span, seq uint32) int {
		switch {
		case s.last <= seq:
			return -1
		case s.first > seq:
			return 1
		}
		return 0
	})
}

// hold adds a segment to held.
func (r *tcpReceiver) hold(seq uint32) {
	i, have := r.find(seq)
	if have {
		return
	}
	joinsLeft := i > 0 && r.held[i-1].last == seq
	joinsRight := i < len(r.held) && r.held[i].first == seq+1
	switch {
	case joinsLeft && joinsRight:
		r.held[i-1].last = r.held[i].last
		r.held = slices.Delete(r.held, i, i+1)
	case joinsLeft:
		r.held[i-1].last++
	case joinsRight:
		r.held[i].first--
	default:
		r.held = slices.Insert(r.held, i, span{seq, seq + 1})
	}
}

// remember puts the span of a segment first in the next acknowledgments (RFC 2018, section 4).
func (r *tcpReceiver) remember(seq uint32) {
	if r.recents > 0 {
		i, _ := r.find(seq)
		if s := r.held[i]; s.first <= r.recent[0] && r.recent[0] < s.last {
			return
		}
	}
	copy(r.recent[1:], r.recent[:])
	r.recent[0] = seq
	r.recents = min(r.recents+1, maxBlocks)
}

// ack returns the acknowledgment to send now.
func (r *tcpReceiver) ack() tcpFrame {
	f := tcpFrame{kind: kindAck, seq: r.expect, sent: r.echo}
	r.pending = 0
	for _, seq := range r.recent[:r.recents] {
		i, ok := r.find(seq)
		if !ok || slices.Contains(f.blocks[:f.count], r.held[i]) {
			continue
		}
		f.blocks[f.count] = r.held[i]
		f.count++
	}
	return f
}
