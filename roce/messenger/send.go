package messenger

import (
	"context"

	"github.com/gorxe/gorxe/roce"
)

// sending is the part of a Conn for the send queue.
type sending struct {
	credits int // messages and requests that the peer permits
	depth   int // the largest value of credits

	// slots is a ring: a work request with the ID n is described by slot n modulo its length, and
	// has the send buffer of the same number.
	slots      []slot
	head, tail uint64 // the oldest work request that is not complete, and the next one
	wrs        [maxBatch]roce.SendWR
	sges       [maxBatch][1]roce.SGE
	creditsDue bool     // a message with credits waits for a slot
	sets       []*opSet // free ones
}

// slot describes a work request.
type slot struct {
	set    *opSet // of a one-sided operation
	op     int    // index in set.ops
	off, n int    // the part of the operation's memory
}

// maxBatch is how many one-sided work requests are posted together.
const maxBatch = 32

func (c *Conn) initSending() { c.slots = make([]slot, c.cfg.Depth+controlSlots) }

// free returns how many work requests can be posted, besides those that only carry credits.
func (c *Conn) free() int { return c.cfg.Depth - int(c.tail-c.head) }

// sendBuffer returns the send buffer of a work request.
func (c *Conn) sendBuffer(id uint64) (buf []byte, off int) {
	i := c.cfg.receives() + int(id%uint64(len(c.slots)))
	off = i * c.stride
	return c.mem[off : off+c.cfg.MaxMessage], off
}

// Send sends a message. It returns as soon as p was copied into a send buffer. It waits while the
// peer's program holds as many messages as its Config.Depth permits, or Config.Depth messages are
// not acknowledged yet, until ctx is done. With a plain peer, it waits only for the latter. An
// error of the connection after Send returned is that of a later call; Flush waits for it.
//
// Errors: ErrTooLarge, ctx's error, that of the connection. After the first two the message was not
// sent.
func (c *Conn) Send(ctx context.Context, p []byte) error {
	if len(p) > c.maxSend {
		return c.failed("send", tooLarge(len(p), c.maxSend))
	}
	c.mu.Lock()
	err := c.admit(ctx)
	if err == nil {
		err = c.post(kindMessage, 0, p)
	}
	c.unlock()
	return c.failed("send", err)
}

// admit waits for a credit and a slot, and takes the credit.
func (c *Conn) admit(ctx context.Context) error {
	for {
		switch {
		case c.err != nil:
			return c.err
		case c.credits > 0 && c.free() > 0:
			if !c.plain {
				c.credits--
			}
			return nil
		}
		if err := c.block(ctx, &c.credit); err != nil {
			return err
		}
	}
}

// awaitSlot waits for a slot.
func (c *Conn) awaitSlot(ctx context.Context) error {
	for c.err == nil && c.free() <= 0 {
		if err := c.block(ctx, &c.slot); err != nil {
			return err
		}
	}
	return c.err
}

// post posts a SEND. The caller holds mu and has made sure that there is a slot.
func (c *Conn) post(k kind, id uint16, p []byte) error {
	buf, off := c.sendBuffer(c.tail)
	n := copy(buf, p)
	wr := &c.wrs[0]
	*wr = roce.SendWR{ID: c.tail, Op: roce.OpSend}
	switch {
	case n > maxInline:
		c.sges[0][0] = c.mr.SGE(off, n)
		wr.SGEs = c.sges[0][:]
	case n > 0:
		wr.Inline = buf[:n]
	}
	if !c.plain {
		wr.Op, wr.Imm = roce.OpSendImm, header{k, c.grant(), id}.encode()
	}
	// A completion now and then frees the slots of all work requests before it.
	if k == kindCredits || c.tail%uint64(c.signalEvery()) == 0 {
		wr.Flags = roce.Signaled
	}
	c.slots[c.tail%uint64(len(c.slots))] = slot{}
	return c.submit(1)
}

// signalEvery returns the distance of signaled work requests.
func (c *Conn) signalEvery() int { return max(1, c.cfg.Depth/4) }

// submit posts the first n work requests of c.wrs.
func (c *Conn) submit(n int) error {
	if err := c.qp.PostSend(c.wrs[:n]...); err != nil {
		if why := c.conn.Err(); why != nil {
			err = why
		}
		c.fail(err)
		return c.err
	}
	c.tail += uint64(n)
	return nil
}

// grant returns the credits for the header of a message.
func (c *Conn) grant() int {
	n := min(c.ungranted, maxGrant)
	c.ungranted -= n
	c.granted += n
	return n
}

// sent handles the completion of a work request, and of those before it.
func (c *Conn) sent(wc *roce.WC) {
	if wc.ID < c.head || wc.ID >= c.tail {
		return
	}
	for ; c.head <= wc.ID; c.head++ {
		s := &c.slots[c.head%uint64(len(c.slots))]
		if s.set != nil {
			c.opDone(c.head, s)
			s.set = nil
		}
	}
}

// sendCredits grants the peer what it may send, in a message of its own.
func (c *Conn) sendCredits() {
	if c.err != nil || int(c.tail-c.head) >= len(c.slots) {
		c.creditsDue = c.err == nil
		return
	}
	c.creditsDue = false
	_ = c.post(kindCredits, 0, nil) // on failure the connection has ended
}
