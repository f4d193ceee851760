package rftp

import (
	"context"
	"errors"
	"fmt"

	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/rftp/core"
)

// Sender is a session of this side: a sequence of blocks, for example a file. Its methods are safe
// for concurrent use.
type Sender struct {
	c *Conn
	o *core.Outgoing // guarded by Conn.mu
}

// Open begins a session. It costs no round trip, but waits while Config.Sessions are open. The
// peer's GetReady returns params with Opened, at most MaxParams bytes.
func (c *Conn) Open(ctx context.Context, params []byte) (*Sender, error) {
	p := append([]byte(nil), params...)
	for {
		s, err := c.open(p)
		if !errors.Is(err, core.ErrSessions) {
			return s, err
		}
		if err := c.sleep(ctx, onSessions); err != nil {
			return nil, err
		}
	}
}

func (c *Conn) open(params []byte) (*Sender, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.err(); err != nil {
		return nil, err
	}
	o, err := c.m.Open(params)
	if err != nil {
		return nil, err
	}
	c.pump()
	c.signal(onSessions)
	return &Sender{c, o}, nil
}

// GetFree waits for a free block. The program fills it and passes it to Send or PutFree.
func (c *Conn) GetFree(ctx context.Context) (*Block, error) { return c.getFree(ctx, nil) }

// GetFree is Conn.GetFree, but leaves blocks to other sessions if the peer is slow to consume those
// of this one.
func (s *Sender) GetFree(ctx context.Context) (*Block, error) { return s.c.getFree(ctx, s.o) }

func (c *Conn) getFree(ctx context.Context, o *core.Outgoing) (*Block, error) {
	for {
		b, err := c.tryFree(o)
		if b != nil || err != nil {
			return b, err
		}
		if err := c.sleep(ctx, onFree); err != nil {
			return nil, err
		}
	}
}

// tryFree returns nil if no block is free.
func (c *Conn) tryFree(o *core.Outgoing) (*Block, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := c.err()
	switch {
	case err != nil:
		return nil, err
	case o != nil && o.Err() != nil:
		return nil, o.Err()
	case c.out.mr == nil:
		if err := c.createOut(); err != nil {
			return nil, err
		}
	}
	i, ok := c.m.GetFree(o)
	if !ok {
		return nil, nil
	}
	c.signal(onFree)
	b := &c.out.list[i]
	b.Data, b.Len, b.Offset, b.Tag = c.out.memory(i, c.agreed.size), 0, 0, 0
	b.Meta = [24]byte{}
	b.Session, b.Seq = 0, 0
	return b, nil
}

// createOut allocates the source's pool.
func (c *Conn) createOut() error {
	mr, err := c.pd.AllocMR(c.sources*stride(c.agreed.size), roce.LocalWrite)
	if err != nil {
		return fmt.Errorf("rftp: allocate a pool of %d blocks of %d bytes: %w", c.sources,
			c.agreed.size, err)
	}
	c.out.init(c, mr, c.sources, c.agreed.size, true)
	return nil
}

// PutFree returns a block: one of GetFree that is not sent, or one of GetReady that the program has
// consumed.
func (c *Conn) PutFree(b *Block) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if b.conn != c {
		return ErrBlock
	}
	if c.closed {
		return ErrClosed
	}
	put := c.m.PutReady
	if b.out {
		put = c.m.PutFree
	}
	if err := put(b.index); err != nil {
		return err
	}
	c.pump()
	return nil
}

// Send sends b.Len bytes of b.Data. It does not wait. Blocks are sent in the order of Send over all
// sessions of the connection, as far as the peer has memory. After an error the caller still has
// the block.
func (s *Sender) Send(b *Block) error {
	c := s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.err(); err != nil {
		return err
	}
	if b.conn != c || !b.out {
		return ErrBlock
	}
	if b.Len < 0 || b.Len > c.agreed.size {
		return fmt.Errorf("%w: Len %d in a block of %d bytes", ErrLength, b.Len, c.agreed.size)
	}
	seq, err := c.m.Send(s.o, b.index, uint32(b.Len))
	if err != nil {
		return err
	}
	b.Session, b.Seq = s.o.ID(), seq
	h := core.Header{Session: b.Session, Seq: seq, Offset: b.Offset, Len: uint32(b.Len),
		Tag: b.Tag, Meta: b.Meta}
	h.Put(c.out.header(b.index, c.agreed.size))
	c.pump()
	return nil
}

// ID returns the number of the session.
func (s *Sender) ID() uint32 { return s.o.ID() }

// Err returns why the session was aborted, or nil.
func (s *Sender) Err() error {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	return s.o.Err()
}

// End says that the session has no more blocks. It does not wait; see Wait.
func (s *Sender) End() {
	c := s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err() == nil {
		c.m.End(s.o)
		c.pump()
	}
}

// Wait waits until the peer has consumed all blocks of a session that has ended. It returns an
// *AbortError if the peer aborted the session, and the error of the connection if that has ended.
func (s *Sender) Wait(ctx context.Context) error {
	c := s.c
	for {
		c.mu.Lock()
		err, over := s.over()
		c.mu.Unlock()
		if over {
			return err
		}
		if err := c.sleep(ctx, onSessions); err != nil {
			return err
		}
	}
}

// over returns how the session has ended.
func (s *Sender) over() (err error, over bool) {
	switch {
	case s.o.Err() != nil:
		err = s.o.Err()
	case s.o.Done():
	default:
		if err = s.c.err(); err == nil {
			return nil, false
		}
	}
	s.c.signal(onSessions) // others may wait for the same
	return err, true
}

// Abort ends the session early and tells the peer why. Blocks that are being sent still arrive, and
// the peer drops them.
func (s *Sender) Abort(text string) {
	c := s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err() == nil {
		c.m.AbortSession(s.o, fmt.Errorf("%w: aborted: %s", ErrEnded, text), text)
		c.pump()
	}
}
