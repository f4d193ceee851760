package indirect

import (
	"context"
	"fmt"

	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/indirect/core"
)

// Transfer is the argument of Post. MR and Off are local: the source of a Write or the destination
// of a Read, in memory registered in the Endpoint's PD (a Read's region must grant LocalWrite and
// RemoteWrite). The memory belongs to the transport from Post to the Done event, a Write's source
// to the Sent event.
type Transfer struct {
	Kind   Kind
	MR     *roce.MR
	Off    int
	Len    int    // bytes
	DBA    uint64 // base address at the peer, interpreted by its Host
	Cookie uint64 // returned with the events
}

// Post starts a transfer. Its events, Acked, Sent (of a Write) and Done, come from Poll and Wait.
// It does not allocate. Errors: ErrFull, ErrLength, ErrTooLarge, ErrMemory, or why the connection
// has ended.
func (c *Conn) Post(t *Transfer) error {
	c.ep.mu.Lock()
	defer c.ep.mu.Unlock()
	_, err := c.post(t, nil)
	return err
}

// post is Post with an optional waiter. The caller holds the lock.
func (c *Conn) post(t *Transfer, w *waiter) (TID, error) {
	e := c.ep
	switch {
	case c.err != nil:
		return 0, c.err
	case c.m == nil:
		return 0, fmt.Errorf("%w: Join first", ErrLost)
	case t.Len < 1 || t.Len > core.MaxLength:
		return 0, ErrLength
	case t.MR == nil || t.MR.PD() != e.pd || t.Off < 0 || t.Off > t.MR.Len() ||
		t.Len > t.MR.Len()-t.Off:
		return 0, ErrMemory
	case e.events.space() < eventsEach*(e.busy+1):
		return 0, ErrFull // the program must read events first
	}
	now := e.now()
	op := core.Op{
		Kind: t.Kind, Local: core.Local{Addr: t.MR.Addr() + uint64(t.Off),
			LKey: uint32(t.MR.LKey())}, RKey: uint32(t.MR.RKey()),
		DBA: t.DBA, Len: uint32(t.Len), Cookie: t.Cookie,
	}
	tid, err := c.m.Post(now, &op)
	if err != nil {
		return 0, err
	}
	e.busy++
	c.waiters[int(tid)&(len(c.waiters)-1)] = w
	c.pump(now)
	if e.wake != nil && c.m.Timeout() < e.wakeAt {
		e.wake() // a sleeping driver does not know of the new timer
	}
	return tid, nil
}

// Write writes n bytes from offset off of mr to address dba of the peer and returns when they are
// there. If ctx is done first it returns ctx's error; the transfer continues, and the memory
// belongs to the transport until Poll reports Done.
func (c *Conn) Write(ctx context.Context, mr *roce.MR, off, n int, dba uint64) error {
	return c.finish(ctx, &Transfer{Kind: Write, MR: mr, Off: off, Len: n, DBA: dba})
}

// Read reads n bytes from address dba of the peer to offset off of mr and returns when they are
// there. See Write about ctx.
func (c *Conn) Read(ctx context.Context, mr *roce.MR, off, n int, dba uint64) error {
	return c.finish(ctx, &Transfer{Kind: Read, MR: mr, Off: off, Len: n, DBA: dba})
}

func (c *Conn) finish(ctx context.Context, t *Transfer) error {
	w := &waiter{done: make(chan struct{})}
	c.ep.mu.Lock()
	tid, err := c.post(t, w)
	c.ep.mu.Unlock()
	if err != nil {
		return err
	}
	err = c.ep.drive(ctx, w.done, func() bool { return w.over })
	c.ep.mu.Lock()
	defer c.ep.mu.Unlock()
	switch {
	case w.over && w.status == StatusOK:
		return nil
	case w.over && w.status == StatusLost && c.err != nil:
		return fmt.Errorf("%w: %w", ErrTransfer, c.err)
	case w.over:
		return fmt.Errorf("%w: %v", ErrTransfer, w.status)
	}
	c.waiters[int(tid)&(len(c.waiters)-1)] = nil // Poll reports the end
	return err
}
