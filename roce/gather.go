package roce

import (
	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/qp"
)

// Gathering: in the midst of a stream of long messages a shard that keeps up with its peer lets a few frames come together before it
// looks again.
//
// Taken one by one, every frame costs some four cache lines that travel between the two processors at work: the ring's index, which the
// looking shard pulls away from the kernel before each store to it; the descriptors, of which four share a line; the fill
// ring's entries, of which eight do, and its index. Together they cost a few frames the same. On a veth it is the sender's thread that
// waits for those lines, and the sender is what limits bandwidth there.
//
// Nobody waits for the middle of a message: its packets complete nothing. So the shard looks at once after a frame that ends a message or
// asks for an ACK, after many frames, and before it sleeps. How long it waits grows with the stream, and is a part of what the rest of the message
// takes to come at the stream's pace. What has gathered has to be worked off before the end is seen, and that takes a fifth to a
// third of the time in which it came. So it is a small part, up to 4 us, if somebody may wait: the program here, which posts what may be answers,
// the peer, which asks for an ACK every time, or whoever sends other things than the one QP's long messages, or if the message does not tell its length. Else
// it is most of it. The first other thing behind eight long messages waits with them once.
//
// A sender builds some dozens of packets before it hands them to the kernel together. Its receiver does not block in such a pause: to be woken
// costs the sender more than to build the packets.
const (
	gatherTime    qp.Time = 16_000 // ns, at most
	gatherShort   qp.Time = 4_000  // ns, at most, if somebody may wait
	gatherAlone   qp.Time = 8_000  // ns, at most, in one-way streams of small messages: somebody may be looking at the memory
	gatherSlope   qp.Time = 125    // ns for each frame of the stream so far
	gatherPackets         = 16     // as many as are waited for at most
	gatherEnough          = 16     // so many at once came together without help

	freeMessages          = 8      // of one QP, with nothing else between them: nobody here waits
	awaitedEnough         = 2      // messages in a row whose end asks for an ACK: the peer waits
	streamGap     qp.Time = 64_000 // ns without a frame end a stream
	burstGap      qp.Time = 8_000  // ns without a frame end a burst
	streamFrames          = int(gatherTime / gatherSlope)
)

// gatherer tells when to look at the receive ring again.
type gatherer struct {
	until  qp.Time // 0: now
	last   qp.Time // when frames came
	frames int     // of the stream so far
	burst  int     // of long messages, without a pause between them; counts no further than needed
	pace   qp.Time // ns that a packet of a long message takes to come; 0: not known
	from   bth.QPN // whose long messages: the QP here
	free   int     // how many since anything else came, or was posted; counts no further than needed
	asks   int     // how many in a row whose end asked for an ACK; likewise
	seen   uint32  // packets of the message that was handled last, so far
	total  uint32  // packets that it has; 0: it does not say
	long   bool    // the packet handled last was of a message of several,
	midst  bool    // and neither ended it nor asked for an ACK
	oneway         // of small messages
}

// handled is told of each packet.
func (g *gatherer) handled(p *bth.Packet) {
	g.long, g.midst, g.stream = !p.Info.Start || !p.Info.End, false, false
	if g.long {
		g.part(p)
		return
	}
	g.free = 0 // a question, an answer, or word of what the long ones have brought
	g.ended(p)
}

// part is told of each packet of a message of several.
func (g *gatherer) part(p *bth.Packet) {
	if to := p.BTH.DestQP(); to != g.from {
		g.from, g.free = to, 0
	}
	asks := p.BTH.AckReq()
	g.midst = !p.Info.End && !asks
	switch {
	case p.Info.Start:
		g.seen, g.total = 0, 0
		if n := uint32(len(p.Payload)); p.Info.Op == bth.OpWrite && n > 0 {
			g.total = (p.RETH().DMALen()-1)/n + 1
		}
	case p.Info.End:
		g.free = min(g.free+1, freeMessages)
		if g.asks = min(g.asks+1, awaitedEnough); !asks {
			g.asks = 0
		}
	}
	g.seen++
}

// posted is told that the program has posted something. It may wait for an answer.
func (g *gatherer) posted() {
	g.free = 0
	g.until = min(g.until, g.last+gatherShort)
	g.oneway.posted()
}

// lost is told that packets get lost: their sender waits for word of it.
func (g *gatherer) lost() { g.free = 0 }

// paused tells whether a burst of long messages has just ended, at time now, and the next may follow.
func (g *gatherer) paused(now qp.Time) bool {
	return g.burst >= gatherEnough && now-g.last < streamGap
}

// received is told of each batch of frames, 1 at least, that were handled at time now.
func (g *gatherer) received(now qp.Time, n int) {
	since, idle := now-g.last, now-max(g.last, g.until)
	g.last = now
	if since > streamGap {
		g.frames, g.pace = 0, 0
	} else if g.long {
		g.paced(since/qp.Time(n), int(g.seen) > n)
	}
	g.frames = min(g.frames+n, streamFrames)
	if idle > burstGap {
		g.burst = 0
	}
	if g.long {
		g.burst = min(g.burst+n, gatherEnough)
	}
	if g.until != 0 {
		g.gathered(n)
	}
	g.until = 0
	wait := qp.Time(0)
	switch {
	case n >= gatherEnough:
	case g.midst:
		wait = g.wait()
	case g.stream:
		wait = gatherAlone
	}
	if wait = min(wait, gatherSlope*qp.Time(g.frames)); wait > 0 {
		g.until = now + wait
	}
	g.long, g.midst, g.stream = false, false, false
}

// wait is how long nobody minds behind a packet of the midst of a message. It is less than the packets take that are waited for: so the pace that is
// measured meanwhile is not the wait's own.
func (g *gatherer) wait() qp.Time {
	packets, known := g.total-g.seen, g.total > g.seen
	if !known { // a SEND or a READ response, which do not tell, or more than it said: as many as have come
		packets = g.seen
	}
	rest := g.pace * qp.Time(min(packets, gatherPackets))
	if !known || g.free < freeMessages || g.asks >= awaitedEnough {
		return min(rest/4, gatherShort)
	}
	return rest * 3 / 4
}

// paced is told how long each of the latest frames took to come, and whether they all were of one message, behind others of it. A shorter time
// counts at once: who waited too long for the rest of a message has the next one, too, and still knows better. A longer one counts slowly: it may
// be the sender's pause, or what gathering itself has brought about.
func (g *gatherer) paced(took qp.Time, within bool) {
	switch {
	case took < g.pace, g.pace == 0 && within:
		g.pace = took
	case within:
		g.pace += min(took-g.pace, g.pace) / 8
	}
}

// nothing is told that no frame was there.
func (g *gatherer) nothing() {
	if g.until != 0 {
		g.until = 0
		g.gathered(0)
	}
}
