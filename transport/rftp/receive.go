package rftp

import (
	"context"
	"errors"
	"io"

	"github.com/gorxe/gorxe/transport/rftp/core"
)

// ReadyKind is what happened to a session of the peer.
type ReadyKind = core.ReadyKind

// The kinds of Ready.
const (
	// Opened: the peer has opened the session. It comes before all blocks.
	Opened = core.Opened
	// Data: a block has arrived. Blocks of a session come in any order.
	Data = core.Data
	// Ended: the session is complete. It comes after all blocks.
	Ended = core.Ended
	// Aborted: the peer has ended the session early.
	Aborted = core.Aborted
)

// Ready is an event of a session of the peer.
type Ready struct {
	Kind    ReadyKind
	Session uint32
	Params  []byte // Opened
	Block   *Block // Data; return it by PutFree
	Blocks  uint32 // Ended: number of blocks of the session
	Text    string // Aborted: the peer's reason
}

// GetReady waits for the next event of a session of the peer. Several goroutines may call it. It
// returns io.EOF when the peer has called Finish and everything was returned.
func (c *Conn) GetReady(ctx context.Context) (Ready, error) {
	for {
		var r Ready
		ok, err := c.tryReady(&r)
		if ok || err != nil {
			return r, err
		}
		if err := c.sleep(ctx, onReady); err != nil {
			return r, err
		}
	}
}

func (c *Conn) tryReady(r *Ready) (bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.err(); err != nil {
		if errors.Is(err, ErrPeerClosed) && c.m.PeerFinished() {
			err = io.EOF
		}
		return false, err
	}
	var it core.Item
	if !c.m.GetReady(&it) {
		if c.m.PeerFinished() {
			c.signal(onReady)
			return false, io.EOF
		}
		return false, nil
	}
	*r = Ready{Kind: it.Kind, Session: it.Session, Params: it.Params, Blocks: it.Blocks,
		Text: it.Text}
	if it.Kind == Data {
		r.Block = c.block(it.Block)
	}
	c.pump()
	c.signal(onReady)
	return true, nil
}

// block returns a block that has arrived.
func (c *Conn) block(i int) *Block {
	b, h := &c.in.list[i], &c.headers[i]
	b.Data, b.Len = c.in.memory(i, c.agreed.size)[:h.Len], int(h.Len)
	b.Offset, b.Tag, b.Meta, b.Session, b.Seq = h.Offset, h.Tag, h.Meta, h.Session, h.Seq
	return b
}

// AbortSession ends a session of the peer early, and tells the peer why: its Sender.Wait returns an
// *AbortError. Blocks that GetReady has not returned are dropped, and no further event of the
// session comes. It fails with ErrEnded if the session has ended and all its blocks were returned.
func (c *Conn) AbortSession(id uint32, text string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.err(); err != nil {
		return err
	}
	err := c.m.RefuseSession(id, text)
	c.pump()
	return err
}

// SendMessage sends 1 to MaxMessage bytes to the peer's program. Messages arrive in order, but
// there is no order between messages and blocks. It waits while the peer's program has not taken
// earlier messages.
func (c *Conn) SendMessage(ctx context.Context, b []byte) error {
	for {
		err := c.trySend(b)
		if !errors.Is(err, core.ErrFull) {
			return err
		}
		if err := c.sleep(ctx, onSpace); err != nil {
			return err
		}
	}
}

func (c *Conn) trySend(b []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.err(); err != nil {
		return err
	}
	err := c.m.SendMessage(b)
	if err == nil {
		c.pump()
		c.signal(onSpace)
	}
	return err
}

// ReceiveMessage waits for the next message of the peer's program.
func (c *Conn) ReceiveMessage(ctx context.Context) ([]byte, error) {
	for {
		b, err := c.tryMessage()
		if b != nil || err != nil {
			return b, err
		}
		if err := c.sleep(ctx, onMessage); err != nil {
			return nil, err
		}
	}
}

func (c *Conn) tryMessage() ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.m != nil {
		// Messages that came before the end are still delivered.
		if b := c.m.NextMessage(); b != nil {
			c.pump()
			c.signal(onMessage)
			return b, nil
		}
	}
	return nil, c.err()
}
