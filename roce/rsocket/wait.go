package rsocket

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/roce/rsocket/core"
)

// role is a kind of waiting call. At most one call of each role waits at a time.
type role int

const (
	reader  role = iota // for data
	writer              // for space
	mapper              // for space of WriteAt; has the lock of writers
	shutter             // for CloseWrite
	opener              // for Map; has the lock of writers
	closer              // for Close
	leaver              // for Close, after the peer has ended the connection
	roles
)

// polls is how often a call polls the CQ before it waits. A wake-up by the progress goroutine costs
// more than a few polls, and meanwhile further messages arrive.
const polls = 32

// pollBatch is the number of completions that are processed at a time.
const pollBatch = 64

// waiters lets one of the waiting calls, the leader, wait at the CQ. It processes completions for
// all of them. The others wait until it wakes them.
type waiters struct {
	leading bool
	waiting [roles]bool
	wake    [roles]chan struct{}
	wcs     [pollBatch]roce.WC // of the leader
}

func (w *waiters) init() {
	for i := range w.wake {
		w.wake[i] = make(chan struct{}, 1)
	}
}

// ready reports whether a call of a role need not wait. The caller holds mu.
func (c *Conn) ready(k role) bool {
	s := c.stream
	if k == reader {
		return s.Buffered() > 0 || s.PeerShutdown() || c.drained
	}
	if s.Shut() && (k == writer || k == mapper || k == opener) {
		return true
	}
	if c.err != nil { // completions tell what the peer has acknowledged
		return c.drained || k != closer && k != shutter
	}
	if (k == writer || k == mapper) && c.qp.State() == roce.StateErr {
		return s.PeerDisconnected() // or the completions tell why
	}
	switch k {
	case writer:
		_, n := s.Space()
		return n > 0 || s.PeerDisconnected()
	case mapper:
		_, n := s.MapSpace()
		return n > 0 || s.PeerDisconnected()
	case opener:
		return s.MapsOpen() || s.PeerDisconnected()
	case leaver:
		return c.rc.Err() != nil
	default:
		return s.Ended() && s.Idle() || s.PeerDisconnected()
	}
}

// await waits until ready, the end of ctx or Close, and processes completions meanwhile. The caller
// holds mu, which is released while it waits.
func (c *Conn) await(k role, ctx context.Context) error {
	for {
		if c.closed && k != closer && k != leaver {
			return net.ErrClosed
		}
		// A post may fail before what has arrived was processed.
		c.drained = c.drained || c.err != nil && !c.wait.leading && c.cq.Len() == 0
		if c.ready(k) {
			return nil
		}
		if c.sendStaged() {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if c.wait.leading {
			c.follow(k, ctx)
			continue
		}
		c.lead(ctx)
		c.wakeOthers(k, c.ready(k) || c.closed || ctx.Err() != nil)
	}
}

// follow waits until the leader wakes this call.
func (c *Conn) follow(k role, ctx context.Context) {
	c.wait.waiting[k] = true
	c.mu.Unlock()
	select {
	case <-c.wait.wake[k]:
	case <-ctx.Done():
	}
	c.mu.Lock()
	c.wait.waiting[k] = false
}

// wakeOthers wakes the calls that are ready, or all of them if the leader leaves: the first one
// becomes the leader.
func (c *Conn) wakeOthers(k role, leaves bool) {
	for i := range roles {
		if i != k && c.wait.waiting[i] && (leaves || c.closed || c.ready(i)) {
			select {
			case c.wait.wake[i] <- struct{}{}:
			default:
			}
		}
	}
}

// lead waits for completions and processes them.
func (c *Conn) lead(ctx context.Context) {
	c.wait.leading = true
	c.mu.Unlock()
	n, err := c.completions(ctx)
	failed := err != nil && ctx.Err() == nil
	for i := range c.wait.wcs[:n] {
		failed = failed || c.wait.wcs[i].Status != roce.Success
	}
	var cause error
	if failed {
		cause = c.cause(err)
	}
	c.mu.Lock()
	c.wait.leading = false
	c.process(c.wait.wcs[:n])
	if failed && c.err == nil {
		c.err = lost(cause)
	}
	c.control()
}

// completions waits for completions, first by polling: it is cheaper than being woken. With manual
// progress, Wait itself does that, and sends the acknowledgments of what it returns.
func (c *Conn) completions(ctx context.Context) (int, error) {
	for i := 0; i < polls && !c.manual; i++ {
		if n := c.cq.Poll(c.wait.wcs[:]); n > 0 {
			return n, nil
		}
	}
	return c.cq.Wait(ctx, c.wait.wcs[:])
}

// cause returns why the connection has ended. The event that says so may follow the completions.
func (c *Conn) cause(err error) error {
	const patience, pause = 200 * time.Millisecond, 100 * time.Microsecond
	for range patience / pause {
		if why := c.rc.Err(); why != nil {
			return why
		}
		c.dev.Progress()
		time.Sleep(pause)
	}
	return err
}

// process takes completions. The caller holds mu.
func (c *Conn) process(wcs []roce.WC) {
	received := 0
	for i := range wcs {
		wc := &wcs[i]
		switch {
		case wc.Status != roce.Success:
			if wc.ID&recvID == 0 {
				c.stream.Failed(wc.ID)
			}
		case wc.ID&recvID == 0:
			c.stream.Completed(wc.ID)
		default:
			received++
			if err := c.receive(wc); err != nil && c.err == nil {
				c.fail(err)
			}
		}
	}
	if received > 0 && c.err == nil {
		c.posted(c.qp.PostRecv(c.recvs[:received]...))
	}
}

// receive takes a message of the peer.
func (c *Conn) receive(wc *roce.WC) error {
	if wc.Opcode != roce.WCRecvWriteImm {
		return ErrProtocol
	}
	return c.stream.Received(wc.Imm, int(wc.ByteLen))
}

// fail ends the connection because of an error of the peer.
func (c *Conn) fail(err error) {
	c.err = err
	_ = c.qp.Cancel() // fails if the QP is closed
}

// control posts the data that waits and the messages that are due. The caller holds mu.
func (c *Conn) control() {
	c.sendStaged()
	for c.err == nil {
		w, ok := c.stream.Control()
		if !ok {
			return
		}
		c.post(&w)
	}
}

// post posts a WRITE. The caller holds mu.
func (c *Conn) post(w *core.Write) {
	wr := &c.wrs[0]
	*wr = roce.SendWR{ID: w.ID, Op: roce.OpWrite, RemoteAddr: w.Addr, RKey: roce.RKey(w.Key)}
	if w.HasImm {
		wr.Op, wr.Imm = roce.OpWriteImm, w.Imm
	}
	if w.Signaled {
		wr.Flags = roce.Signaled
	}
	switch {
	case w.IsInline:
		wr.Inline = c.inline[:copy(c.inline[:], w.Inline[:w.Len])]
	case w.Len > 0:
		c.sges[0] = c.send.SGE(w.Off, w.Len)
		wr.SGEs = c.sges[:]
	}
	c.posted(c.qp.PostSend(c.wrs[:]...))
}

// posted notes that posting failed: the QP is in the error state.
func (c *Conn) posted(err error) {
	if err == nil || c.err != nil {
		return
	}
	if why := c.rc.Err(); why != nil && errors.Is(err, roce.ErrQPState) {
		err = why
	}
	c.err = lost(err)
}
