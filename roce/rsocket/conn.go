package rsocket

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/roce/rsocket/core"
)

// Conn is a stream over RDMA. It is a net.Conn: its methods are safe for concurrent use, and their
// errors are *net.OpError, except io.EOF.
type Conn struct {
	*endpoint
	rc            *roce.Conn
	local, remote net.Addr
	linger        time.Duration

	reading, writing sync.Mutex // one reader and one writer at a time
	deadlines        [2]*deadline

	mu     sync.Mutex // guards everything below
	stream *core.Stream
	err    error // why the QP failed
	closed bool
	// drained means that the QP has failed and that all its completions were processed.
	drained bool
	wait    waiters
	collect collector
	wrs     [1]roce.SendWR // scratch of post
	sges    [1]roce.SGE
	inline  [core.InlineLen]byte
	maps    []*roce.MR
}

// farewellTime is how long Close waits for a peer that has ended the connection. The kernel's rxe
// repeats its last message after its ACK timeout, which rdma_cm sets to 2.1 s in Linux 6.1.
const farewellTime = 5 * time.Second

var (
	_ net.Conn      = (*Conn)(nil)
	_ io.ReaderFrom = (*Conn)(nil)
	_ io.WriterTo   = (*Conn)(nil)
	_ io.WriterAt   = (*Conn)(nil)
)

func newConn(e *endpoint, rc *roce.Conn, s *core.Stream, cfg *Config) *Conn {
	c := &Conn{endpoint: e, rc: rc, stream: s, linger: cfg.Linger,
		local: Addr{rc.LocalAddr()}, remote: Addr{rc.RemoteAddr()},
		deadlines: [2]*deadline{newDeadline(), newDeadline()}}
	c.wait.init()
	c.mu.Lock()
	c.control() // the other half of the receive buffer
	c.mu.Unlock()
	return c
}

// LocalAddr returns the local address, an Addr.
func (c *Conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr returns the address of the peer, an Addr.
func (c *Conn) RemoteAddr() net.Addr { return c.remote }

// SetDeadline sets the deadlines of reads and of writes. See net.Conn.
func (c *Conn) SetDeadline(t time.Time) error {
	return errors.Join(c.setDeadline(reader, t), c.setDeadline(writer, t))
}

// SetReadDeadline sets the deadline of reads.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.setDeadline(reader, t) }

// SetWriteDeadline sets the deadline of writes. A Write that ends at it may have sent a part of the
// data.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.setDeadline(writer, t) }

func (c *Conn) setDeadline(k role, t time.Time) error {
	c.mu.Lock()
	closed := c.closed
	c.mu.Unlock()
	if closed {
		return c.opError("set", net.ErrClosed)
	}
	c.deadlines[k].set(t)
	return nil
}

// SetLinger sets how long Close waits for the peer's acknowledgment of what was written. With 0 or
// a negative time, Close does not wait, and data that was not acknowledged is lost.
func (c *Conn) SetLinger(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.linger = d; d == 0 {
		c.linger = -1
	}
}

// QP returns the queue pair of the connection, for its statistics. The program must not post work
// requests to it.
func (c *Conn) QP() *roce.QP { return c.qp }

// CloseWrite ends the local direction of the stream: after the data that was written, the peer
// reads io.EOF. The connection can still be read. A Write in progress ends with EPIPE, and so do
// other calls that send. CloseWrite waits until the peer's device has acknowledged everything, at
// most until the deadline of writes; its program need not read.
func (c *Conn) CloseWrite() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.writable(); err != nil {
		return c.opError("close", err)
	}
	c.sendStaged()
	c.stream.Shutdown()
	c.control()
	c.wakeOthers(shutter, false)
	err := c.await(shutter, c.deadlines[writer])
	if err == nil && !c.stream.Idle() && !c.stream.PeerDisconnected() {
		err = c.err
	}
	return c.opError("close", err)
}

// Close ends the connection. It waits until the peer's device has acknowledged everything that was
// written, at most for the time of Config.Linger, and returns an error if the peer has not. If the
// peer has ended both directions first, it waits until the peer disconnects, at most for that time,
// and at most 5 s. Data that was not read is lost. Calls that wait return an error that matches
// net.ErrClosed.
func (c *Conn) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return c.opError("close", net.ErrClosed)
	}
	c.closed = true
	if c.collect.timer != nil {
		c.collect.timer.Stop()
	}
	linger := c.linger
	if linger > 0 {
		c.sendStaged()
		c.stream.Disconnect()
		c.control()
	}
	c.mu.Unlock()
	for _, d := range c.deadlines {
		d.close()
	}
	var err error
	if linger > 0 {
		err = c.flush(linger)
		c.farewell(linger)
	}
	return c.opError("close", errors.Join(err, c.rc.Close(), c.release()))
}

// flush waits until the peer has acknowledged everything.
func (c *Conn) flush(linger time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), linger)
	defer cancel()
	c.mu.Lock()
	defer c.mu.Unlock()
	err := c.await(closer, ctx)
	switch {
	case c.stream.PeerDisconnected():
	case err != nil && c.inFlight()+c.stream.Staged() > 0:
		return fmt.Errorf("rsocket: the peer has not acknowledged all data within %v "+
			"(Config.Linger): it does not answer, or the network is slow", linger)
	case c.stream.Lost() && !errors.Is(c.err, roce.ErrClosed):
		return c.err
	}
	return nil
}

// farewell answers a peer that has ended the connection until it disconnects. If the acknowledgment
// of its last message is lost, the peer repeats that message, and the kernel's rxe without limit.
// This side need not be answered, so it can wait. If both have ended the connection at the same
// time, programs of gorxe do not: they would wait for each other, and end without an
// acknowledgment.
func (c *Conn) farewell(linger time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), min(linger, farewellTime))
	defer cancel()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stream.PeerRepeats() {
		_ = c.await(leaver, ctx) // nothing follows from its end
	}
}

// abort ends a connection without telling the peer that the stream has ended.
func (c *Conn) abort() error {
	c.SetLinger(0)
	return c.Close()
}

// release destroys the verbs objects. Calls that are still using memory of the connection may
// continue: it belongs to the Go heap.
func (c *Conn) release() error {
	c.mu.Lock()
	maps := c.maps
	c.maps = nil
	c.mu.Unlock()
	var errs []error
	for _, m := range maps {
		errs = append(errs, m.Close())
	}
	if c.dev.Err() != nil {
		errs = nil
	}
	return errors.Join(append(errs, c.endpoint.close())...)
}

// opError wraps err unless it is nil.
func (c *Conn) opError(op string, err error) error {
	if err == nil {
		return nil
	}
	return opError(op, c.local, c.remote, err)
}
