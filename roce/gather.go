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
// asks for an ACK, after many frames, and before it sleeps. It waits the longer the longer the stream has lasted, and never longer than
// the rest of the message takes to come, so that nobody waits for its end.
const (
	gatherTime   qp.Time = 4000 // ns, at most
	gatherSlope  qp.Time = 125  // ns for each frame of the stream so far
	gatherRest   qp.Time = 375  // ns for each packet of the message that is still to come: one of path MTU 1024 takes some 900
	gatherEnough         = 16   // so many at once came together without help
	streamGap    qp.Time = 8000 // ns without a frame end a stream
)

// gatherer tells when to look at the receive ring again.
type gatherer struct {
	until  qp.Time // 0: now
	last   qp.Time // when frames came
	frames int     // of the stream so far
	seen   uint32  // packets of the message that was handled last, so far
	total  uint32  // packets that it has; 0: it does not say
	midst  bool    // the packet handled last neither ended a message nor asked for an ACK
	oneway         // of small messages
}

// handled is told of each packet.
func (g *gatherer) handled(p *bth.Packet) {
	g.midst, g.stream = false, false
	if p.Info.End {
		g.ended(p)
	} else {
		g.within(p)
	}
}

// within is told of each packet that does not end its message. Messages of several QPs that come at a time are taken for one: then they
// wait a little more or less.
func (g *gatherer) within(p *bth.Packet) {
	g.midst = !p.BTH.AckReq()
	if p.Info.Start {
		g.seen, g.total = 0, 0
		if n := uint32(len(p.Payload)); p.Info.Op == bth.OpWrite && n > 0 {
			g.total = (p.RETH().DMALen()-1)/n + 1
		}
	}
	g.seen++
}

// rest is how many packets of the message are still to come. A SEND or a READ response does not tell its length: as many as have come.
func (g *gatherer) rest() qp.Time {
	if g.total > g.seen {
		return qp.Time(g.total - g.seen)
	}
	return qp.Time(g.seen)
}

// received is told of each batch of frames, 1 at least, that were handled at time now.
func (g *gatherer) received(now qp.Time, n int) {
	if now-g.last > streamGap {
		g.frames = 0
	}
	g.last = now
	g.frames = min(g.frames+n, int(gatherTime/gatherSlope))
	if g.until != 0 {
		g.gathered(n)
	}
	g.until = 0
	switch slope := gatherSlope * qp.Time(g.frames); {
	case n >= gatherEnough:
	case g.midst:
		g.until = now + min(slope, gatherRest*g.rest())
	case g.stream:
		g.until = now + slope
	}
	g.midst, g.stream = false, false
}

// nothing is told that no frame was there.
func (g *gatherer) nothing() {
	if g.until != 0 {
		g.until = 0
		g.gathered(0)
	}
}
