package loop

import (
	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/qp"
)

// coalescer implements receive coalescing: within a stream of long messages, a loop that keeps up
// with its peer leaves the receive ring alone for a moment, so that it processes several frames at
// once.
//
// A frame that is processed alone costs about four cache lines that move between the two CPUs
// involved: the index of the receive ring, its descriptors (four to a line), the entries of the
// fill ring (eight to a line) and its index. A batch of frames shares them. On a veth pair the
// sender's thread waits for these lines, and the sender is the bottleneck.
//
// The delay does not hurt in the middle of a message, whose packets complete nothing. So the loop
// polls immediately after a frame that ends a message or requests an ACK, after a large batch, and
// before it sleeps. Otherwise the delay grows with the length of the stream and is limited to a
// part of the time that the rest of the message needs at the stream's pace: to process the delayed
// frames takes a fifth to a third of the time in which they arrived, and the end of the message
// must not wait for that. The part is a quarter, at most coalesceShort, if someone may wait for the
// message: the local program posts work requests, the peer requests an ACK for every message, other
// QPs or short messages are active, or the message does not carry its length. Otherwise it is three
// quarters. The first different packet behind eight long messages is delayed once.
//
// A sender builds dozens of packets before it passes them to the kernel. The receiver keeps
// spinning during such a pause (see paused), because waking it would cost the sender more than
// building the packets.
type coalescer struct {
	until       qp.Time // do not poll before; 0: poll now
	last        qp.Time // when the latest frames came
	frames      int     // of the stream so far; saturates
	burst       int     // frames of long messages without a pause; saturates
	pace        qp.Time // ns between two packets of a long message; 0: unknown
	from        bth.QPN // the local QP of the latest long message
	undisturbed int     // its messages since any other packet or a local post; saturates
	asked       int     // consecutive messages whose end requested an ACK; saturates
	seen        uint32  // packets of the current message so far
	total       uint32  // packets of the current message; 0: unknown
	multi       bool    // the latest packet belongs to a message of several packets
	middle      bool    // and it neither ends the message nor requests an ACK
	oneWay              // small messages
}

// packet records a packet.
func (c *coalescer) packet(p *bth.Packet) {
	c.multi, c.middle, c.active = !p.Info.Start || !p.Info.End, false, false
	if c.multi {
		c.part(p)
		return
	}
	c.undisturbed = 0 // a request, a response or a notification
	c.small(p)
}

// part records a packet of a message of several packets.
func (c *coalescer) part(p *bth.Packet) {
	if to := p.BTH.DestQP(); to != c.from {
		c.from, c.undisturbed = to, 0
	}
	asks := p.BTH.AckReq()
	c.middle = !p.Info.End && !asks
	switch {
	case p.Info.Start:
		c.seen, c.total = 0, 0
		if n := uint32(len(p.Payload)); p.Info.Op == bth.OpWrite && n > 0 {
			c.total = (p.RETH().DMALen()-1)/n + 1
		}
	case p.Info.End:
		c.undisturbed = min(c.undisturbed+1, undisturbedEnough)
		if c.asked = min(c.asked+1, askedEnough); !asks {
			c.asked = 0
		}
	}
	c.seen++
}

// posted records that the local program has posted work requests. It may wait for a response.
func (c *coalescer) posted() {
	c.undisturbed = 0
	c.until = min(c.until, c.last+coalesceShort)
	c.oneWay.posted()
}

// lost records that packets get lost. Their sender waits for a NAK.
func (c *coalescer) lost() { c.undisturbed = 0 }

// paused reports whether a burst of long messages has ended shortly before now, so that the next
// may follow soon.
func (c *coalescer) paused(now qp.Time) bool {
	return c.burst >= coalesceEnough && now-c.last < streamGap
}

// batch records that n > 0 frames came and were handled at time now. It sets until.
func (c *coalescer) batch(now qp.Time, n int) {
	since, idle := now-c.last, now-max(c.last, c.until)
	c.last = now
	if since > streamGap {
		c.frames, c.pace = 0, 0
	} else if c.multi {
		c.updatePace(since/qp.Time(n), int(c.seen) > n)
	}
	c.frames = min(c.frames+n, streamFrames)
	if idle > burstGap {
		c.burst = 0
	}
	if c.multi {
		c.burst = min(c.burst+n, coalesceEnough)
	}
	if c.until != 0 {
		c.result(n)
	}
	c.until = 0
	delay := qp.Time(0)
	switch {
	case n >= coalesceEnough:
	case c.middle:
		delay = c.delay()
	case c.active:
		delay = coalesceOneWay
	}
	if delay = min(delay, coalescePerFrame*qp.Time(c.frames)); delay > 0 {
		c.until = now + delay
	}
	c.multi, c.middle, c.active = false, false, false
}

// delay returns the delay after a packet in the middle of a message. It is shorter than the time in
// which the awaited packets arrive, so that the pace measured meanwhile is not that of the delay
// itself.
func (c *coalescer) delay() qp.Time {
	packets, known := c.total-c.seen, c.total > c.seen
	if !known { // SENDs and READ responses do not carry their length
		// Expect as many packets as have come.
		packets = c.seen
	}
	rest := c.pace * qp.Time(min(packets, coalescePackets))
	if !known || c.undisturbed < undisturbedEnough || c.asked >= askedEnough {
		return min(rest/4, coalesceShort)
	}
	return rest * 3 / 4
}

// updatePace records how long each of the latest frames took to arrive. within means that all of
// them belong to one message and follow another packet of it. A shorter time counts at once,
// because too long a delay would hold up the next message, too. A longer one counts slowly, because
// it may come from a pause of the sender or from coalescing.
func (c *coalescer) updatePace(took qp.Time, within bool) {
	switch {
	case took < c.pace, c.pace == 0 && within:
		c.pace = took
	case within:
		c.pace += min(took-c.pace, c.pace) / 8
	}
}

// empty records that the receive ring was empty.
func (c *coalescer) empty() {
	if c.until != 0 {
		c.until = 0
		c.result(0)
	}
}
