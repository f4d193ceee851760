package messenger

import (
	"cmp"
	"context"

	"github.com/gorxe/gorxe/roce"
)

// sending is the part of a Conn for the send queue.
type sending struct {
	credits int // messages and requests that the peer permits
	depth   int // the largest value of credits

	// slots is a ring. A work request has a slot, and the send buffer of the same number. The IDs
	// of work requests count up.
	slots         []slot
	head, tail    uint64 // the oldest work request that is not complete, and the next one
	first, next   int    // their slots
	signalEvery   int    // distance of signaled work requests
	sinceSignaled int    // work requests since then

	// The work requests that are posted next; see flush.
	wrs       [maxBatch]roce.SendWR
	sges      [maxBatch][1]roce.SGE
	queued    int  // how many
	signalDue bool // their completion is needed

	creditsDue bool     // a message with credits waits for a slot
	sets       []*opSet // free ones
}

// slot describes a work request.
type slot struct {
	set    *opSet // of a one-sided operation
	op     int    // index in set.ops
	off, n int    // the part of the operation's memory
}

// maxBatch is how many work requests are posted together.
const maxBatch = 32

func (c *Conn) initSending() {
	c.slots = make([]slot, c.cfg.Depth+controlSlots)
	c.signalEvery = max(1, c.cfg.Depth/2)
}

// free returns how many work requests can be posted, besides those that only carry credits.
func (c *Conn) free() int { return c.cfg.Depth - int(c.tail-c.head) }

// slotAfter returns the slot n after another one; n is less than the number of slots.
func (c *Conn) slotAfter(i, n int) int {
	if i += n; i >= len(c.slots) {
		i -= len(c.slots)
	}
	return i
}

// sendBuffer returns the send buffer of a slot.
func (c *Conn) sendBuffer(slot int) (buf []byte, off int) {
	off = (len(c.bufs) + slot) * c.stride
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
	canceled := ctx.Err() // before the lock: a nil ctx panics here
	c.mu.Lock()
	err := cmp.Or(c.err, canceled)
	if err == nil {
		err = c.admit(ctx)
	}
	if err == nil {
		c.post(kindMessage, 0, p)
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
		case c.qp.State() == roce.StateErr:
			return c.reason()
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
	if c.err == nil && c.qp.State() == roce.StateErr {
		return c.reason()
	}
	return c.err
}

// reason returns why the connection ended, before that was noticed by a completion. Messages that
// wait can still be received.
func (c *Conn) reason() error {
	if err := c.conn.Err(); err != nil {
		return err
	}
	return roce.ErrConnLost
}

// post queues a SEND. The caller holds mu and has made sure that there is a slot.
func (c *Conn) post(k kind, id uint16, p []byte) {
	wr, sge, at := c.enqueue()
	buf, off := c.sendBuffer(at)
	n := copy(buf, p)
	wr.Op, wr.Inline, wr.SGEs = roce.OpSend, nil, nil
	switch {
	case n > maxInline:
		sge[0] = c.mr.SGE(off, n)
		wr.SGEs = sge[:]
	case n > 0:
		wr.Inline = buf[:n]
	}
	if !c.plain {
		wr.Op, wr.Imm = roce.OpSendImm, header{k, c.grant(), id}.encode()
	}
	c.signal(false)
}

// signal decides whether the completion of the work request from enqueue is needed. One now and
// then frees the slots of all work requests before it.
func (c *Conn) signal(needed bool) {
	if c.sinceSignaled++; needed || c.sinceSignaled >= c.signalEvery {
		c.signalDue = true
	}
}

// enqueue returns the next work request, its SGE and its slot, for which the caller has made sure
// that there is one.
func (c *Conn) enqueue() (wr *roce.SendWR, sge *[1]roce.SGE, at int) {
	if c.queued == maxBatch {
		c.flush()
	}
	at = c.next
	c.slots[at].set = nil
	wr, sge = &c.wrs[c.queued], &c.sges[c.queued]
	wr.ID, wr.Flags = c.tail, 0
	c.queued++
	c.tail++
	c.next = c.slotAfter(c.next, 1)
	return wr, sge, at
}

// flush posts the queued work requests. The caller holds mu.
func (c *Conn) flush() {
	if c.queued == 0 || c.err != nil {
		return
	}
	if c.signalDue {
		c.wrs[c.queued-1].Flags = roce.Signaled
		c.signalDue, c.sinceSignaled = false, 0
	}
	n := c.queued
	c.queued = 0
	if err := c.qp.PostSend(c.wrs[:n]...); err != nil {
		if why := c.conn.Err(); why != nil {
			err = why
		}
		c.fail(err)
	}
}

// flushUnless posts the queued work requests, unless callers that were woken are about to run: they
// probably queue more, and the last one posts them all. So many concurrent callers need few
// doorbells.
func (c *Conn) flushUnless() {
	if c.queued > 0 && c.awake == 0 {
		c.flush()
	}
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
		if s := &c.slots[c.first]; s.set != nil {
			c.opDone(c.first, s)
			s.set = nil
		}
		c.first = c.slotAfter(c.first, 1)
	}
}

// sendCredits grants the peer what it may send, in a message of its own.
func (c *Conn) sendCredits() {
	if c.err != nil || int(c.tail-c.head) >= len(c.slots) {
		c.creditsDue = c.err == nil
		return
	}
	c.creditsDue = false
	c.post(kindCredits, 0, nil)
}
