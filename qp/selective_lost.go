package qp

import (
	"slices"

	"github.com/gorxe/gorxe/bth"
)

// findLost marks packets of a track as lost and returns how many.
func (q *QP) findLost(b *scoreboard, track uint32) (lost uint32) {
	t := &b.tracks[track]
	limit := t.high - q.tolerated(track)
	if t.high == t.head && q.tolerance == minTolerance {
		limit = t.high - 1 // nothing else is on the way that could show the loss
	}
	if int32(t.sure-limit) > 0 {
		limit = t.sure
	}
	for ; int32(limit-t.tail) > 0; t.tail++ {
		entry := t.log[t.tail&uint32(len(t.log)-1)]
		if entry&logRead != 0 {
			lost += q.lostRead(b, t.tail)
			continue
		}
		p := extend(q.una, bth.PSN(entry))
		if p < q.una || p >= q.max || b.isHeld(p) || b.isLost(p) {
			continue
		}
		if v := *b.slot(p); v&slotResponse == track && v>>slotBits == t.tail&serialMask {
			b.markLost(p)
			lost++
			if b.guess == 0 && track == responseTrack && !q.attr.Selective {
				b.guess, b.guessAt = p, 0
			}
			b.lostAgain = b.lostAgain || v&slotBoth == slotBoth
		}
	}
	t.sure = t.tail
	return lost
}

// tolerated returns the tolerance in packets of a track. One request is for many responses.
func (q *QP) tolerated(track uint32) uint32 {
	n := uint32(q.tolerance)
	if track != requestTrack {
		return n
	}
	if w := q.sq.oldest(); w != nil && w.op == OpRead {
		n = max(n>>w.part, minTolerance)
	}
	return n
}

// lostRead handles the transmission of a READ request that is lost unless it was delivered. All its
// responses are requested again. It returns the number of packets that the path has lost.
func (q *QP) lostRead(b *scoreboard, serial uint32) uint32 {
	for i, r := range b.reads {
		if r.serial != serial {
			continue
		}
		b.reads = slices.Delete(b.reads, i, i+1)
		if r.held || r.psn < b.executed {
			return 0
		}
		_, end := q.sq.at(q.workRequest(r.psn)).partOf(r.psn)
		for p := r.psn; p < end; p++ {
			if !b.isHeld(p) && !b.isLost(p) {
				b.markLost(p)
			}
		}
		return 1
	}
	return 0
}

// late adapts tolerance to a packet that arrived after n packets that were sent after it.
func (q *QP) late(n uint32) {
	if n >= uint32(q.tolerance) {
		q.tolerance = uint16(min(n+n/4+1, q.toleranceLimit()))
		q.keepTolerance()
	}
}

// keepTolerance delays the next decrease.
func (q *QP) keepTolerance() { q.cc.decayAt = q.max + decayWindows*uint64(q.win.size()) }

func (q *QP) toleranceLimit() uint32 {
	return min(max(q.win.size()*3/4, minToleranceLimit), maxTolerance)
}

// reportedDuplicates processes the count of a SelACK. Duplicates show unnecessary retransmissions:
// packets were late instead of lost. The network may duplicate packets too, so at most as many
// count as were retransmitted.
func (q *QP) reportedDuplicates(now Time, total uint16) {
	n := total - q.dups
	if int16(n) <= 0 { // an older report was overtaken
		return
	}
	q.dups = total
	q.spurious(now, n)
}

// spurious handles the report that n packets arrived twice, of which those that were retransmitted
// were late instead of lost. Probes do not show impatience: they are sent when no answer arrives.
func (q *QP) spurious(now Time, n uint16) {
	late := min(n, q.resent)
	if c := q.cc; c != nil && n > late {
		probes := min(uint32(n-late), c.probes)
		c.probes -= probes
		q.countSpurious(c, uint64(probes))
	}
	if late == 0 {
		return
	}
	q.resent -= late
	q.impatient(now, late)
}

// countSpurious counts at most as many packets as were retransmitted: a retransmitted READ request
// causes many responses, all of which may arrive twice.
func (q *QP) countSpurious(c *congestion, n uint64) {
	n = min(n, c.retransmits-c.spurious)
	q.eng.c.SpuriousRetransmits += n
	c.spurious += n
}

// impatient handles n packets that were late instead of lost. tolerance doubles at most once per
// round trip, because one late burst causes many of them.
func (q *QP) impatient(now Time, n uint16) {
	c := q.model()
	q.countSpurious(c, uint64(n))
	c.lost -= min(c.lost, uint64(n))
	if c.grownAt != 0 && now-c.grownAt < q.rec.srtt {
		return
	}
	c.grownAt = now
	q.keepTolerance()
	q.tolerance = uint16(min(2*uint32(q.tolerance), q.toleranceLimit()))
}

// decayTolerance lowers tolerance after decayWindows without a late packet.
func (q *QP) decayTolerance() {
	if q.tolerance > minTolerance && q.una >= q.cc.decayAt {
		q.tolerance -= (q.tolerance - minTolerance + 7) / 8
		q.keepTolerance()
	}
}
