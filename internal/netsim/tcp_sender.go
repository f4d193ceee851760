package netsim

import "time"

// Limits of the retransmission timeout (RFC 6298; the least is that of Linux).
const (
	firstRTO = time.Second
	leastRTO = 200 * time.Millisecond
	mostRTO  = 60 * time.Second
)

// reordering is by how many later transmissions a segment must be overtaken to count as lost.
const reordering = 3

// segment is the state of a segment in flight.
type segment struct {
	serial uint64 // number of its last transmission
	sent   int64  // when that was
	held   bool   // reported by a selective acknowledgment
	lost   bool   // and not sent again
}

// transmission is an entry of tcpSender.order.
type transmission struct {
	serial uint64
	sent   int64
	seq    uint32
}

// tcpSender is the sending side of a TCP flow.
type tcpSender struct {
	cubic
	una, nxt uint32 // first segment not acknowledged, next new one
	segs     []segment
	pipe     int             // segments in flight: sent, neither acknowledged nor held nor lost
	lost     int             // segments to send again
	search   uint32          // no segment before it is lost
	serials  uint64          // transmissions
	reduced  uint32          // the window is not reduced again for segments before it
	frozen   uint32          // the window does not grow until all before it is acknowledged
	seen     [maxBlocks]span // blocks of the last acknowledgment

	order     []transmission // by serial; entries of delivered segments are skipped
	head      int            // the first of them
	delivered transmission   // latest one that is known to have arrived

	srtt, rttvar, rto time.Duration
	timeout           int64 // when it expires; 0: none
	probeAt           int64 // when to send a probe; 0: never
	probing           bool  // the next segment to send is the probe
}

func (s *tcpSender) init() {
	s.cubic, s.rto, s.segs = newCubic(), firstRTO, make([]segment, maxSegments)
}

func (s *tcpSender) at(seq uint32) *segment { return &s.segs[seq%maxSegments] }

// maySend reports whether the window has space for a segment.
func (s *tcpSender) maySend() bool {
	return s.probing || float64(s.pipe) < s.window && (s.lost > 0 || s.nxt-s.una < maxSegments)
}

// next returns the segment to send now: the probe, the first lost one, or a new one.
func (s *tcpSender) next(now int64) uint32 {
	seq := s.nxt
	switch {
	case s.probing: // the last segment again; if it was in flight, it is still counted
		seq, s.probing = s.nxt-1, false
		if s.at(seq).lost {
			s.lost--
			s.pipe++
		}
	case s.lost > 0:
		for !s.at(s.search).lost {
			s.search++
		}
		seq = s.search
		s.lost--
		s.pipe++
	default:
		s.nxt++
		s.pipe++
	}
	s.serials++
	*s.at(seq) = segment{serial: s.serials, sent: now}
	s.order = append(s.order, transmission{s.serials, now, seq})
	if s.timeout == 0 {
		s.restart(now)
	}
	return seq
}

// restart starts the timers, if anything is outstanding. A probe is sent before the timeout, to
// learn what was lost at the end of a burst (RFC 8985, section 7).
func (s *tcpSender) restart(now int64) {
	s.timeout, s.probeAt = 0, 0
	if s.una == s.nxt {
		return
	}
	s.timeout = now + int64(s.rto)
	after := 2 * s.srtt
	if s.pipe <= 1 {
		after += time.Duration(delayedAck)
	}
	if s.srtt > 0 && after < s.rto {
		s.probeAt = now + int64(after)
	}
}

// acknowledged handles an acknowledgment.
func (s *tcpSender) acknowledged(now int64, f *tcpFrame) {
	if f.kind != kindAck || f.seq < s.una || f.seq > s.nxt {
		return
	}
	acked := int(f.seq - s.una)
	for ; s.una < f.seq; s.una++ {
		s.arrived(s.una)
	}
	s.search = max(s.search, s.una)
	for _, b := range f.blocks[:f.count] {
		s.hold(b)
	}
	s.seen = f.blocks
	s.sample(time.Duration(now - f.sent))
	s.findLost()
	if acked == 0 {
		return
	}
	if s.una >= s.frozen {
		s.acked(now, s.srtt, acked)
	}
	s.restart(now)
}

// hold notes that the segments of a block have arrived, except those of the last acknowledgment.
func (s *tcpSender) hold(b span) {
	for _, old := range s.seen {
		if old.first < old.last && b.first <= old.first && old.last <= b.last {
			s.hold(span{b.first, old.first})
			b.first = old.last
			break
		}
	}
	for seq := max(b.first, s.una); seq < min(b.last, s.nxt); seq++ {
		s.arrived(seq)
		s.at(seq).held = true
	}
}

// arrived notes that a segment has arrived, unless that is known.
func (s *tcpSender) arrived(seq uint32) {
	g := s.at(seq)
	switch {
	case g.held:
		return
	case g.lost:
		g.lost = false
		s.lost--
	default:
		s.pipe--
	}
	if g.serial > s.delivered.serial {
		s.delivered = transmission{g.serial, g.sent, seq}
	}
}

// findLost marks segments that later transmissions have overtaken. The first one of a window
// reduces it.
func (s *tcpSender) findLost() {
	for ; s.head < len(s.order); s.head++ {
		t := s.order[s.head]
		near := t.serial+reordering > s.delivered.serial
		if near && (t.serial >= s.delivered.serial || t.sent+int64(s.srtt)/4 > s.delivered.sent) {
			break
		}
		g := s.at(t.seq)
		if t.seq < s.una || g.serial != t.serial || g.held || g.lost {
			continue
		}
		s.markLost(t.seq)
		if t.seq >= s.reduced {
			s.reduced, s.frozen = s.nxt, s.nxt
			s.cubic.lost()
		}
	}
	if 2*s.head >= len(s.order) { // amortized O(1)
		s.order = s.order[:copy(s.order, s.order[s.head:])]
		s.head = 0
	}
}

func (s *tcpSender) markLost(seq uint32) {
	s.at(seq).lost = true
	s.lost++
	s.pipe--
	s.search = min(s.search, seq)
}

// sample updates the retransmission timeout (RFC 6298).
func (s *tcpSender) sample(rtt time.Duration) {
	if s.srtt == 0 {
		s.srtt, s.rttvar = rtt, rtt/2
	} else {
		s.rttvar += ((s.srtt - rtt).Abs() - s.rttvar) / 4
		s.srtt += (rtt - s.srtt) / 8
	}
	s.rto = min(max(s.srtt+4*s.rttvar, leastRTO), mostRTO)
}

func (s *tcpSender) nextTimeout() (int64, bool) {
	if s.probeAt != 0 {
		return s.probeAt, true // it precedes the timeout
	}
	return s.timeout, s.timeout != 0
}

// checkTimeout sends a probe, or everything again that is not held, if the time has come.
func (s *tcpSender) checkTimeout(now int64) {
	if s.probeAt != 0 && now >= s.probeAt {
		s.probeAt = 0
		s.probing = !s.at(s.nxt - 1).held
	}
	if s.timeout == 0 || now < s.timeout {
		return
	}
	for seq := s.una; seq < s.nxt; seq++ {
		if g := s.at(seq); !g.held && !g.lost {
			s.markLost(seq)
		}
	}
	s.cubic.timedOut()
	s.reduced, s.frozen = s.nxt, s.una // slow start begins at once
	s.rto = min(2*s.rto, mostRTO)
	s.timeout = now + int64(s.rto)
}
