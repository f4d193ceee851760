package roce

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"github.com/gorxe/gorxe/qp"
	"github.com/gorxe/gorxe/roce/cm"
)

// Conn is a connection made by the connection manager, as rdma_cm makes it. Its QP is in RTS. The QP is the caller's:
// close it after the Conn. Closing the QP, or the device, ends the connection, too.
type Conn struct {
	qp            *QP
	talk          *dialogue
	local, remote netip.AddrPort
	private       []byte

	done chan struct{}
	once sync.Once
	err  error // before done is closed
}

// start makes the dialogue the Conn's. What came meanwhile, and whatever became of the QP, reaches it.
func (c *Conn) start() {
	c.done = make(chan struct{})
	err := c.qp.device().do(func(now qp.Time) {
		g := c.qp.device().gsi
		c.talk.conn = c
		for e, ok, ended := c.talk.take(); ok || ended; e, ok, ended = c.talk.take() {
			if ended {
				c.ended(now, ErrClosed)
				return
			}
			c.heard(now, &e)
		}
		if c.qp.State() == StateErr {
			c.ended(now, ErrConnLost)
		}
		g.dispatch(now)
	})
	if err != nil {
		c.finish(err)
	}
}

// QP is the connection's queue pair.
func (c *Conn) QP() *QP { return c.qp }

// LocalAddr is this end's address; of a connection that was accepted, with the port that was dialed.
func (c *Conn) LocalAddr() netip.AddrPort { return c.local }

// RemoteAddr is the peer's address; of a connection that was accepted, with the port that the peer named as its own.
func (c *Conn) RemoteAddr() netip.AddrPort { return c.remote }

// PrivateData is what the peer said when it accepted, or asked: the message's whole field, zeros behind the peer's bytes.
func (c *Conn) PrivateData() []byte { return c.private }

// Done is closed when the connection has ended, whoever ended it. The QP is in state ERR then. With Manual progress
// somebody has to drive the device for it.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Err says why the connection ended; nil while it lasts. ErrDisconnected: the peer ended it (a *RejectError beside it,
// if the peer broke it off or had forgotten it). ErrConnLost: the QP went to ERR, as when the peer answers no more and
// retries run out. ErrClosed: this end closed the Conn, the QP or the device.
func (c *Conn) Err() error {
	select {
	case <-c.done:
		return c.err
	default:
		return nil
	}
}

func (c *Conn) finish(err error) {
	c.once.Do(func() {
		c.err = err
		close(c.done)
	})
}

// heard takes in an event of the connection manager. Owner only.
func (c *Conn) heard(now qp.Time, e *cm.Event) {
	if e.Kind != cm.EventDisconnected {
		return
	}
	err := ErrDisconnected
	if e.Reason != 0 {
		err = fmt.Errorf("%w: %w", ErrDisconnected, &RejectError{Reason: e.Reason, PrivateData: e.PrivateData})
	}
	c.ended(now, err)
}

// ended ends the connection here: the QP flushes, and the peer is told or gets its answer. Owner only.
func (c *Conn) ended(now qp.Time, why error) {
	if !c.qp.closed.Load() && c.qp.State() != StateErr {
		_ = c.qp.qp.Modify(now, &Attr{State: StateErr}, AttrState) // any state goes there
	}
	g := c.qp.device().gsi
	if g.conns[c.talk.id] == c.talk {
		_ = g.cm.Disconnect(cm.Time(now), c.talk.id, nil) // a DREQ or a DREP, if one is due: else ErrState
	}
	c.finish(why)
}

// Close disconnects: what the QP owes the peer is sent, the peer is told, and the QP goes to ERR, which flushes what is
// still posted. To finish first, call QP.Drain before. It does not wait for the peer. Closing twice is harmless.
func (c *Conn) Close() error { return c.hangUp(c.qp.device().loop.SendPending) }

// Abort ends the connection at once: the QP goes to ERR without sending anything that it owes, not even
// acknowledgements, so that the peer does not take for done what this end may not have looked at. The peer is told.
func (c *Conn) Abort() error { return c.hangUp(func() {}) }

func (c *Conn) hangUp(before func()) error {
	err := c.qp.device().do(func(now qp.Time) {
		if c.Err() != nil {
			return
		}
		before()
		c.ended(now, ErrClosed)
		g := c.qp.device().gsi
		g.dispatch(now)
		g.transmit(now)
	})
	if errors.Is(err, ErrClosed) {
		c.finish(ErrClosed) // the device went before, and took the connection with it
		return nil
	}
	return err
}
