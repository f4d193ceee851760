package loop

import (
	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/qp"
)

// coalescer implements receive coalescing: while a peer streams data and neither side waits for a
// packet, the loop leaves the receive ring alone for a moment after each batch, so that it
// processes several frames at once.
//
// A frame that is processed alone costs about four cache lines that move between the two CPUs
// involved: the index of the receive ring, its descriptors (four to a line), the entries of the
// fill ring (eight to a line) and its index. A batch of frames shares them. On a veth pair the
// sender's thread waits for these lines, and the sender is the bottleneck.
//
// A side may be waiting if the local program posts work requests, which may be responses; if the
// peer requests ACKs often, because it has few packets in flight; and after a packet that completes
// something, that is, every last packet except that of a WRITE without immediate.
type coalescer struct {
	until    qp.Time // do not poll before; 0: poll now
	quiet    int     // packets since a side may have waited; at most coalesceQuiet
	sinceAck int     // packets since the peer requested an ACK
	open     bool    // neither side waits for the latest packet
}

// packet records a received packet.
func (c *coalescer) packet(p *bth.Packet) {
	c.count(p.BTH.AckReq(), !p.Info.End || (p.Info.Op == bth.OpWrite && !p.Info.HasImm))
}

// count does the same. asked says that the peer requests an ACK, and more that the packet does not
// complete anything.
func (c *coalescer) count(asked, more bool) {
	c.quiet = min(c.quiet+1, coalesceQuiet)
	c.sinceAck++
	if asked {
		if c.sinceAck <= coalesceAckGap {
			c.quiet = 0
		}
		c.sinceAck, c.open = 0, false
		return
	}
	c.open = more
}

// posted records that the local program has posted work requests.
func (c *coalescer) posted() { c.quiet = 0 }

// batch records that frames were handled at time now. It sets until.
func (c *coalescer) batch(now qp.Time) {
	c.until = 0
	if c.quiet == coalesceQuiet && c.open {
		c.until = now + coalesceTime
	}
	c.open = false
}
