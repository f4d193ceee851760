package messenger

import (
	"context"
	"errors"
	"io"
	"iter"
	"sync/atomic"

	"github.com/gorxe/gorxe/roce"
)

// receiving is the part of a Conn for received messages.
//
// Each receive buffer is posted, waits to be posted, or has a message that waits or that the
// program holds. Always posted, or on their way, are: one buffer for each credit of the peer, one
// for each outstanding call of this side, and some for messages that only carry credits. So the
// peer never gets an RNR NAK.
type receiving struct {
	bufs     []buffer
	rwrs     []roce.RecvWR
	unposted []uint32 // buffers that wait to be posted

	repostBatch int  // how many buffers are posted together
	inbox       ring // messages that wait
	pending     ring // requests that wait

	granted   int // credits that the peer has
	ungranted int // buffers that are posted and not granted yet
	held      int // messages and requests that the program holds
}

// buffer describes a receive buffer.
type buffer struct {
	gen  atomic.Uint32 // counts releases
	sge  [1]roce.SGE
	n    int   // bytes of the message
	kind kind  // of the message
	used bool  // the program holds it
	call int   // the call that it answers
	from *work // of a request: the worker that serves it

	id       uint16 // of the call
	live     bool   // a request that is not answered
	canceled bool   // likewise, and the caller does not wait any more
}

// ring is a queue of buffers.
type ring struct {
	at      []uint32
	head, n int
}

func (r *ring) len() int { return r.n }

func (r *ring) push(i uint32) {
	at := r.head + r.n
	if at >= len(r.at) {
		at -= len(r.at)
	}
	r.at[at] = i
	r.n++
}

func (r *ring) pop() uint32 {
	i := r.at[r.head]
	if r.head++; r.head == len(r.at) {
		r.head = 0
	}
	r.n--
	return i
}

// recvID marks the IDs of receives.
const recvID = 1 << 63

func (c *Conn) initReceiving() {
	n := c.cfg.receives()
	c.bufs, c.rwrs, c.unposted = make([]buffer, n), make([]roce.RecvWR, n), make([]uint32, n)
	c.inbox.at, c.pending.at = make([]uint32, n), make([]uint32, n)
	for i := range c.bufs {
		b := &c.bufs[i]
		b.sge[0] = c.mr.SGE(i*c.stride, c.cfg.MaxMessage)
		b.kind = kindCredits
		c.unposted[i] = uint32(i)
	}
	c.granted = c.cfg.Depth // by the hello
	c.repostBatch = min(8, max(1, min(c.cfg.Depth, c.cfg.Calls)/4))
}

// repost posts the buffers that wait for it. Then the peer may use them.
func (c *Conn) repost() error {
	for j, i := range c.unposted {
		c.rwrs[j] = roce.RecvWR{ID: recvID | uint64(i), SGEs: c.bufs[i].sge[:]}
	}
	if err := c.qp.PostRecv(c.rwrs[:len(c.unposted)]...); err != nil {
		return err
	}
	for _, i := range c.unposted {
		switch b := &c.bufs[i]; b.kind {
		case kindMessage, kindRequest, kindCancel:
			c.ungranted++
		case kindAnswer, kindError:
			c.freeCall(b.call)
		}
	}
	c.unposted = c.unposted[:0]
	return nil
}

// recycle makes a buffer available again. The caller holds mu.
func (c *Conn) recycle(i uint32) {
	b := &c.bufs[i]
	b.gen.Add(1)
	b.from, b.live, b.canceled = nil, false, false
	if b.used {
		b.used = false
		if b.kind == kindMessage || b.kind == kindRequest {
			c.held--
		}
	}
	c.unposted = append(c.unposted, i)
	answer := b.kind == kindAnswer || b.kind == kindError
	if len(c.unposted) >= c.repostBatch || (answer && len(c.freeCalls) == 0) {
		c.mustRepost()
	}
	c.grantMore()
}

// mustRepost is repost for a connection that may have ended.
func (c *Conn) mustRepost() {
	if c.err != nil {
		return
	}
	if err := c.repost(); err != nil {
		if why := c.conn.Err(); why != nil {
			err = why
		}
		c.fail(err)
	}
}

// grantMore sends credits if half of what the peer could have is not granted. What the program
// holds does not count: the rest must suffice to go on.
func (c *Conn) grantMore() {
	available := c.ungranted + len(c.unposted) // including a few buffers of other kinds
	if c.plain || c.err != nil || available < max(1, (c.cfg.Depth-c.held)/2) {
		return
	}
	if len(c.unposted) > 0 {
		c.mustRepost()
	}
	if c.ungranted >= max(1, (c.cfg.Depth-c.held)/2) {
		c.sendCredits()
	}
}

// received handles the completion of a receive.
func (c *Conn) received(wc *roce.WC) error {
	i := uint32(wc.ID)
	b := &c.bufs[i]
	b.n = int(wc.ByteLen)
	h := header{}
	switch {
	case wc.Opcode != roce.WCRecv:
		return ErrProtocol
	case c.plain:
		b.kind = kindMessage
		c.inbox.push(i)
		return nil
	case wc.Flags&roce.WCWithImm != 0:
		h = decodeHeader(wc.Imm)
	}
	b.kind, b.id = h.kind, h.id
	if c.credits += h.credits; c.credits > c.depth {
		return ErrProtocol
	}
	switch h.kind {
	case kindMessage, kindRequest, kindCancel:
		if c.granted == 0 {
			return ErrProtocol
		}
		c.granted--
	}
	switch h.kind {
	case kindMessage:
		c.inbox.push(i)
	case kindRequest:
		b.live = true
		c.pending.push(i)
	case kindAnswer, kindError:
		return c.answered(i, b)
	case kindCancel:
		c.cancelRequest(h.id)
		c.recycle(i)
	case kindCredits:
		c.recycle(i)
	default:
		return ErrProtocol
	}
	return nil
}

// dispatch handles completions. The caller holds mu.
func (c *Conn) dispatch(wcs []roce.WC) {
	if len(wcs) > 0 {
		c.turn++
	}
	for i := range wcs {
		wc := &wcs[i]
		switch {
		case wc.Status != roce.Success:
			c.lost(wc)
		case wc.ID&recvID == 0:
			c.sent(wc)
		case c.err == nil:
			if err := c.received(wc); err != nil {
				c.fail(err)
				_ = c.qp.Cancel() // notifies the peer; fails if the QP was closed
			}
		}
	}
	if c.creditsDue {
		c.sendCredits()
	}
	c.tellAbandoned()
}

// Message is a received message in a receive buffer. It is a small value; copies are equivalent.
// The zero Message is empty.
type Message struct {
	c   *Conn
	i   uint32
	gen uint32
	n   int
}

// Bytes returns the message. It is valid until Release, and nil after it.
func (m Message) Bytes() []byte {
	if m.c == nil || m.c.bufs[m.i].gen.Load() != m.gen {
		return nil
	}
	off := int(m.i) * m.c.stride
	return m.c.mem[off : off+m.n : off+m.n]
}

// Release returns the buffer, so that the peer can send another message. The program must not use
// the slice that Bytes returned any more. Releasing twice is harmless.
func (m Message) Release() {
	if m.c == nil {
		return
	}
	m.c.mu.Lock()
	m.c.drop(m)
	m.c.unlock()
}

// drop releases a message of the connection, or an empty one. The caller holds mu.
func (c *Conn) drop(m Message) {
	if m.c != nil && c.bufs[m.i].gen.Load() == m.gen {
		c.recycle(m.i)
		c.turn++
	}
}

// take makes the program the holder of buffer i. The caller holds mu.
func (c *Conn) take(i uint32) Message {
	b := &c.bufs[i]
	b.used = true
	return Message{c: c, i: i, gen: b.gen.Load(), n: b.n}
}

// Recv waits for the next message of the peer's Send. The program calls Release when it does not
// need the message any more; while it holds as many as Config.Depth permits, the peer cannot send.
//
// Errors: ctx's error; that of the connection, which is io.EOF for errors.Is if the peer has closed
// it. Messages that arrived before the end of the connection are returned first.
func (c *Conn) Recv(ctx context.Context) (Message, error) {
	c.mu.Lock()
	m, err := c.recv(ctx)
	c.unlock()
	return m, c.failed("recv", err)
}

func (c *Conn) recv(ctx context.Context) (Message, error) {
	for c.inbox.len() == 0 {
		if c.err != nil {
			return Message{}, c.err
		}
		if err := c.block(ctx, &c.messages); err != nil {
			return Message{}, err
		}
	}
	m := c.take(c.inbox.pop())
	c.held++
	if c.ungranted+len(c.unposted) > 0 {
		c.grantMore()
	}
	return m, nil
}

// Messages returns an iterator over the messages of the peer, until the peer closes the connection.
// It releases each message after the body of the loop. If Recv fails otherwise, the last pair has
// its error.
func (c *Conn) Messages(ctx context.Context) iter.Seq2[Message, error] {
	return func(yield func(Message, error) bool) {
		var m Message
		for {
			var err error
			c.mu.Lock()
			c.drop(m)
			m, err = c.recv(ctx)
			c.unlock()
			if err = c.failed("recv", err); err != nil {
				if !errors.Is(err, io.EOF) {
					yield(m, err)
				}
				return
			}
			if !yield(m, nil) {
				m.Release()
				return
			}
		}
	}
}
