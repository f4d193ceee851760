package roce

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/gorxe/gorxe/qp"
	"github.com/gorxe/gorxe/roce/cm"
)

// Conn is a connection that was set up by the connection manager, as rdma_cm does. Its QP is in
// StateRTS. The QP remains the program's: close it after the Conn. Closing the QP or the Device
// ends the connection, too.
type Conn struct {
	qp            *QP
	id            *cmID
	local, remote netip.AddrPort
	private       []byte

	done   chan struct{}
	err    error // set before done is closed
	silent bool  // the peer did not answer keepalives. Owner only

	mu    sync.Mutex
	over  bool                                  // finish was called; guarded by mu, like hooks
	hooks map[*context.CancelCauseFunc]struct{} // called with err; see Context
}

// start passes the events of the cmID to the Conn, beginning with those that came already, and
// starts keepalives: the first one after the time first.
func (c *Conn) start(keepAlive, first time.Duration) {
	c.done = make(chan struct{})
	d := c.qp.device()
	err := d.do(func(now qp.Time) {
		c.id.conn = c
		d.log.established(c)
		for e, ok, ended := c.id.take(); ok || ended; e, ok, ended = c.id.take() {
			if ended {
				c.ended(now, ErrClosed)
				return
			}
			c.handle(now, &e)
		}
		if c.qp.State() == StateErr {
			c.ended(now, c.qp.lost())
		} else if period := keepAlivePeriod(keepAlive); period > 0 {
			d.gsi.alive.watch(now, c.qp, period, first)
		}
		d.gsi.dispatch(now)
	})
	if err != nil {
		c.finish(err)
	}
}

// QP returns the queue pair of the connection.
func (c *Conn) QP() *QP { return c.qp }

// LocalAddr returns the local address. For an accepted connection, the port is the one that was
// dialed.
func (c *Conn) LocalAddr() netip.AddrPort { return c.local }

// RemoteAddr returns the peer's address. For an accepted connection, the port is the one that the
// peer states in its request.
func (c *Conn) RemoteAddr() netip.AddrPort { return c.remote }

// PrivateData returns the private data of the peer's reply (Dial) or request (Accept). It is the
// whole field of the message: the peer's data is followed by zeros. See EncodePrivateData.
func (c *Conn) PrivateData() []byte { return c.private }

// Done returns a channel that is closed when either side has ended the connection. The QP is then
// in StateErr. With Manual progress, this needs calls that drive the Device.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Err returns nil while the connection exists, then why it ended:
//
//   - ErrDisconnected: the peer ended it. If the peer aborted or did not know the connection, a
//     *RejectError is wrapped, too.
//   - ErrConnLost: the QP went to StateErr, for example because the peer stopped answering. A
//     *StatusError with the status of the first failed work request is wrapped, too, so that
//     errors.Is(err, RemAccessErr) works. If keepalives were not answered, the status is
//     RetryExcErr, and ErrKeepAlive is wrapped.
//   - ErrClosed: the Conn, the QP or the Device was closed, or the QP was changed to StateReset.
//   - The error of Device.Err, such as ErrGone or ErrServiceEnded, if the Device has failed.
func (c *Conn) Err() error {
	select {
	case <-c.done:
		return c.err
	default:
		return nil
	}
}

// Context returns a context that is canceled when parent is done or the connection ends.
// context.Cause then returns the cause of parent, or what Err returns. Call cancel to release it
// earlier.
func (c *Conn) Context(parent context.Context) (ctx context.Context, cancel context.CancelFunc) {
	ctx, stop := context.WithCancelCause(parent)
	c.mu.Lock()
	over := c.over
	if !over {
		if c.hooks == nil {
			c.hooks = map[*context.CancelCauseFunc]struct{}{}
		}
		c.hooks[&stop] = struct{}{}
	}
	c.mu.Unlock()
	if over {
		stop(c.err)
	}
	return ctx, func() {
		stop(nil)
		c.mu.Lock()
		delete(c.hooks, &stop)
		c.mu.Unlock()
	}
}

// finish records why the connection has ended. Only the first call counts.
func (c *Conn) finish(err error) {
	c.mu.Lock()
	if c.over {
		c.mu.Unlock()
		return
	}
	c.over, c.err = true, err
	c.qp.device().log.closed(c, err)
	hooks := c.hooks
	c.hooks = nil
	close(c.done)
	c.mu.Unlock()
	for stop := range hooks {
		(*stop)(err)
	}
}

// handle handles an event of the connection manager. Owner only.
func (c *Conn) handle(now qp.Time, e *cm.Event) {
	if e.Kind != cm.EventDisconnected {
		return
	}
	err := ErrDisconnected
	if e.Reason != 0 {
		err = fmt.Errorf("%w: %w", ErrDisconnected,
			&RejectError{Reason: e.Reason, PrivateData: e.PrivateData})
	}
	c.ended(now, err)
}

// ended ends the connection locally: the QP is flushed, unless it was reset since, and a DREQ or
// DREP is sent if the state of the connection requires one. Owner only.
func (c *Conn) ended(now qp.Time, why error) {
	if c.qp.cmID == c.id && !c.qp.closed.Load() && c.qp.State() != StateErr {
		_ = c.qp.halt(now)
	}
	g := c.qp.device().gsi
	if g.ids[c.id.comm] == c.id {
		_ = g.cm.Disconnect(cm.Time(now), c.id.comm, nil) // fails if no message is due
	}
	c.finish(why)
}

// Close disconnects. It sends pending acknowledgments of the QP, notifies the peer, and puts the QP
// into StateErr, which flushes outstanding work requests. To complete them first, call QP.Drain.
// Close does not wait for the peer. Closing twice is harmless.
func (c *Conn) Close() error {
	return c.disconnect(func() { c.qp.device().loop.SendPending(&c.qp.qp) })
}

// Abort disconnects like Close, but does not send pending acknowledgments: the peer cannot assume
// that its latest messages were processed.
func (c *Conn) Abort() error { return c.disconnect(func() {}) }

// disconnect ends the connection after calling first.
func (c *Conn) disconnect(first func()) error {
	d := c.qp.device()
	err := d.do(func(now qp.Time) {
		if c.Err() != nil {
			return
		}
		first()
		c.ended(now, ErrClosed)
		d.gsi.dispatch(now)
		d.gsi.transmit(now)
	})
	if errors.Is(err, ErrClosed) {
		c.finish(ErrClosed) // closing the device has ended the connection
		return nil
	}
	return err
}
