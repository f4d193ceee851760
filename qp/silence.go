package qp

import "github.com/gorxe/gorxe/bth"

// A peer that gets no CPU time answers nothing. Then the probe timers of all QPs to that peer
// expire, and without further measures each of them would send probes. So a QP whose timer expires
// waits for the answer to another QP's probe of the same peer, if nothing has arrived from the peer
// lately. When the peer continues, it answers everything, and no other probe is needed. If it has
// answered the probe but not this QP, packets were lost, and all QPs send their probes.

const (
	// Peers are told apart by one byte of their GID, the last byte of the IP address. Two peers
	// with the same byte count as one, which delays a probe by maxSilence at most.
	peerByte  = 15
	peerSlots = 256
	// maxSilence is the longest time that a QP waits for the answer to another QP's probe, in ns.
	maxSilence Time = 2_000_000
)

// maxUnheard bounds the exponent of a wait: minRTO << maxUnheard exceeds maxSilence.
const maxUnheard = 5

// peerTable holds when the engine has heard of its peers, when it probed them, and how long their
// answers take.
type peerTable struct {
	heard  [peerSlots]Time // of the last packet of an RC QP
	probes [peerSlots]peerProbe
	rtts   [peerSlots]peerRTT
}

// peerRTT is the estimate of the last QP that measured a round trip.
type peerRTT struct {
	peer    bth.GID
	longest Time // see recovery.longestRTT
}

// peerProbe is the latest probe that was sent to a peer.
type peerProbe struct {
	at, until Time  // when it was sent, and how long other QPs wait for its answer
	unheard   uint8 // probes in a row without an answer of any kind, at most maxUnheard
}

func (q *QP) peer() uint8 { return q.path.GIDs().Remote[peerByte] }

// measuredRTT records the estimate of a QP that has measured a round trip.
func (q *QP) measuredRTT() {
	g := q.path.GIDs().Remote
	q.eng.peers.rtts[g[peerByte]] = peerRTT{g, q.rec.longestRTT()}
}

// borrowRTT uses the estimate of other QPs to the same peer as an upper bound if the QP has none,
// because its first packets were lost. The time until their repetitions are answered would be a
// much worse bound.
func (q *QP) borrowRTT() {
	r, g := &q.rec, q.path.GIDs().Remote
	if p := &q.eng.peers.rtts[g[peerByte]]; r.srtt == 0 && p.peer == g {
		r.srtt, r.rttvar = p.longest, p.longest
	}
}

// awaitOtherProbe returns when the QP, whose probe timer has expired, looks again for the answer to
// another QP's probe. It is not after now if the QP must send its own.
func (q *QP) awaitOtherProbe(now Time) Time {
	t, slot := &q.eng.peers, q.peer()
	p, heard := &t.probes[slot], t.heard[slot]
	if heard >= p.at || heard > q.rec.probeDeadline-q.rec.rto()/2 {
		return now // the peer works
	}
	return min(p.until, now+max(q.rec.rto(), (p.until-now)/2))
}

// noteProbe records that the QP probes its peer. Like the timers of one QP, the time for which
// other QPs wait doubles with each probe without an answer. They do not wait if the peer has just
// answered the one before.
func (q *QP) noteProbe(now Time) {
	t, slot, rto := &q.eng.peers, q.peer(), q.rec.rto()
	p := &t.probes[slot]
	wait := min(max(rto, minRTO<<p.unheard), maxSilence)
	switch {
	case t.heard[slot] < p.at:
		p.unheard = min(p.unheard+1, maxUnheard)
	case now-p.at < 2*rto:
		p.unheard, wait = 0, 0
	default:
		p.unheard, wait = 0, min(rto, maxSilence)
	}
	p.at, p.until = now, now+wait
}
