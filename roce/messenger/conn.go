package messenger

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"github.com/gorxe/gorxe/roce"
)

// Conn is a connection. Its methods are safe for concurrent use.
type Conn struct {
	dev     *roce.Device
	pd      *roce.PD
	ownPD   bool
	qp      *roce.QP
	cq      *roce.CQ
	mr      *roce.MR // the receive buffers, then the send buffers
	mem     []byte   // of mr
	stride  int      // bytes from buffer to buffer
	conn    *roce.Conn
	remote  netip.AddrPort
	cfg     Config
	plain   bool // the peer has sent no hello
	maxSend int  // bytes of the longest message that the peer receives

	mu  sync.Mutex // guards everything below
	err error      // why the connection ended

	waiting
	sending
	receiving
	calling

	closing sync.Once
}

// bufferAlign is the alignment of buffers, in bytes: a cache line.
const bufferAlign = 64

// newConn creates the buffers of a connection on qp and posts all receives.
func newConn(dev *roce.Device, qp *roce.QP, cfg Config) (*Conn, error) {
	c := &Conn{dev: dev, pd: qp.PD(), qp: qp, cq: qp.SendCQ(), cfg: cfg}
	if c.pd == nil || c.cq == nil {
		return nil, roce.ErrClosed
	}
	c.stride = (cfg.MaxMessage + bufferAlign - 1) &^ (bufferAlign - 1)
	var err error
	c.mr, err = c.pd.AllocMR((cfg.receives()+cfg.Depth+controlSlots)*c.stride, roce.LocalWrite)
	if err != nil {
		return nil, err
	}
	c.mem = c.mr.Bytes()
	info := dev.Info()
	c.virtual = dev.Virtual()
	c.polls = info.Progress == roce.Auto && info.Datapath != "memory"
	c.initSending()
	c.initReceiving()
	c.initCalling()
	if err := c.repost(); err != nil {
		return nil, errors.Join(err, c.mr.Close())
	}
	return c, nil
}

// checkContext panics for a nil context, before anything has changed.
func checkContext(ctx context.Context) {
	if ctx == nil {
		panic("messenger: nil Context")
	}
}

// needsDevice returns an error for a nil Device.
func needsDevice(dev *roce.Device) error {
	if dev == nil {
		return fmt.Errorf("%w: the Device is nil", roce.ErrInvalid)
	}
	return nil
}

// create creates a PD if there is none, a QP and the buffers.
func create(dev *roce.Device, cfg Config) (c *Conn, err error) {
	if err = needsDevice(dev); err != nil {
		return nil, err
	}
	if cfg, err = cfg.withDefaults(); err != nil {
		return nil, err
	}
	pd := cfg.PD
	if pd == nil {
		if pd, err = dev.AllocPD(); err != nil {
			return nil, err
		}
		defer func() {
			if err != nil {
				err = errors.Join(err, pd.Close())
			}
		}()
	}
	qp, err := dev.CreateQP(pd, cfg.qpConfig())
	if err != nil {
		return nil, err
	}
	if c, err = newConn(dev, qp, cfg); err != nil {
		return nil, errors.Join(err, qp.Close())
	}
	c.ownPD = cfg.PD == nil
	return c, nil
}

// hello returns the private data for the peer.
func (c *Conn) hello() []byte {
	return hello{credits: uint16(c.cfg.Depth), maxMessage: uint32(c.cfg.MaxMessage)}.encode()
}

// start makes the Conn usable on an established connection. private is the peer's private data.
func (c *Conn) start(conn *roce.Conn, remote netip.AddrPort, private []byte) error {
	c.conn, c.remote = conn, remote
	h, ok, err := decodeHello(private)
	if err != nil {
		return err
	}
	c.plain = !ok
	if c.plain {
		c.maxSend, c.credits = c.cfg.MaxMessage, 1
		return nil
	}
	c.maxSend = int(min(h.maxMessage, uint32(c.cfg.MaxMessage)))
	c.credits, c.depth = int(h.credits), int(h.credits)
	return nil
}

// Dial connects to a program that listens at addr: a server of this package, or any program on
// rdma_cm that exchanges plain SENDs. ctx limits the time until the connection is established.
//
// Errors: those of roce.Device.Dial; roce.ErrInvalid for a Config out of range or a nil dev;
// ErrProtocol.
func Dial(ctx context.Context, dev *roce.Device, addr netip.AddrPort, cfg Config) (*Conn, error) {
	checkContext(ctx)
	c, err := create(dev, cfg)
	if err == nil {
		err = c.dial(ctx, addr)
	}
	if err != nil {
		return nil, &Error{Op: "dial", Peer: addr, Err: err}
	}
	return c, nil
}

func (c *Conn) dial(ctx context.Context, addr netip.AddrPort) error {
	conn, err := c.dev.Dial(ctx, addr, c.qp,
		roce.DialOptions{ConnectOptions: c.cfg.Connect, PrivateData: c.hello()})
	if err == nil {
		err = c.start(conn, addr, conn.PrivateData())
	}
	if err != nil {
		return errors.Join(err, c.release())
	}
	return nil
}

// Accept accepts a request for a connection that a roce.Listener of dev has returned. The peer is a
// program that called Dial, or any program on rdma_cm that exchanges plain SENDs. Serve does this
// for each request.
//
// Errors: those of roce.Request.Accept; roce.ErrInvalid for a Config out of range or a nil dev;
// ErrProtocol.
// After an error the request has been refused.
func Accept(ctx context.Context, dev *roce.Device, r *roce.Request, cfg Config) (*Conn, error) {
	checkContext(ctx)
	c, err := create(dev, cfg)
	if err != nil {
		err = errors.Join(err, r.RejectWith(roce.RejectNoResources, nil))
	} else {
		err = c.accept(ctx, r)
	}
	if err != nil {
		return nil, &Error{Op: "accept", Peer: r.RemoteAddr(), Err: err}
	}
	return c, nil
}

func (c *Conn) accept(ctx context.Context, r *roce.Request) error {
	o := roce.AcceptOptions{ConnectOptions: c.cfg.Connect}
	_, ok, err := decodeHello(r.PrivateData())
	if err != nil {
		return errors.Join(err, r.RejectWith(roce.RejectUnsupported, nil), c.release())
	}
	if ok {
		o.PrivateData = c.hello()
	}
	conn, err := r.Accept(ctx, c.qp, o)
	if err == nil {
		err = c.start(conn, conn.RemoteAddr(), r.PrivateData())
	}
	if err != nil {
		return errors.Join(err, c.release())
	}
	return nil
}

// RemoteAddr returns the peer's address.
func (c *Conn) RemoteAddr() netip.AddrPort { return c.remote }

// LocalAddr returns the local address.
func (c *Conn) LocalAddr() netip.AddrPort { return c.conn.LocalAddr() }

// PD returns the protection domain of the connection. Memory that the peer accesses must be
// registered in it. Unless the connection is one of Serve or has Config.PD, close the regions
// before Close.
func (c *Conn) PD() *roce.PD { return c.pd }

// QP returns the queue pair, for its statistics.
func (c *Conn) QP() *roce.QP { return c.qp }

// MaxMessage returns the length in bytes of the longest message that Send, Call and the peer's
// Handler can send. With a plain peer it is Config.MaxMessage; the peer's buffers may be shorter.
func (c *Conn) MaxMessage() int { return c.maxSend }

// Done returns a channel that is closed when either side has ended the connection, or the peer does
// not answer any more. Messages that came before can still be received.
func (c *Conn) Done() <-chan struct{} { return c.conn.Done() }

// Flush waits until the peer's RDMA side has acknowledged all messages and one-sided operations:
// they are in the peer's memory, and its program may not have taken them yet.
//
// Errors: ctx's error, that of the connection.
func (c *Conn) Flush(ctx context.Context) error {
	return c.failed("flush", c.drain(ctx))
}

// drain posts what is queued, and waits until everything has completed.
func (c *Conn) drain(ctx context.Context) error {
	c.mu.Lock()
	c.flush()
	c.mu.Unlock()
	if err := c.qp.Drain(ctx); err != nil {
		return err
	}
	// If work requests have failed, the connection may end only later. Query waits until the
	// device has changed the state.
	if a, err := c.qp.Query(); err == nil && a.State == roce.StateErr {
		return c.ended(0, roce.ErrConnLost)
	}
	return c.conn.Err()
}

// Close waits until the peer has acknowledged what was sent, at most for Config.Linger, ends the
// connection and releases everything. Calls of other goroutines return with an error that wraps
// roce.ErrClosed. Closing twice is harmless. Messages that were not released can still be read.
//
// Errors: one that wraps roce.ErrInUse if memory is registered in a PD that the connection owns;
// close the memory and call Close again, which closes the PD. An error if the peer has not
// acknowledged everything, unless it has closed the connection, or another call has returned the
// reason.
func (c *Conn) Close() (err error) {
	again := true
	c.closing.Do(func() { again, err = false, c.close() })
	if again && c.ownPD {
		err = c.pd.Close()
	}
	return c.failed("close", err)
}

func (c *Conn) close() error {
	var lost error
	if c.cfg.Linger > 0 {
		ctx, cancel := context.WithTimeout(context.Background(), c.cfg.Linger)
		lost = c.drain(ctx)
		cancel()
	}
	c.mu.Lock()
	var status *roce.StatusError
	if why := c.conn.Err(); c.err != nil || errors.Is(why, roce.ErrKeepAlive) ||
		(why != nil && !errors.As(why, &status)) {
		lost = nil // the program knows it, or no work request has failed
	}
	c.fail(roce.ErrClosed)
	c.mu.Unlock()
	return errors.Join(lost, c.conn.Close(), c.release())
}

// release closes the objects of the connection.
func (c *Conn) release() error {
	err := errors.Join(c.qp.Close(), c.mr.Close())
	if c.ownPD {
		err = errors.Join(err, c.pd.Close())
	}
	return err
}

// fail ends the connection locally: calls return err. The caller holds mu.
func (c *Conn) fail(err error) {
	if c.err != nil {
		return
	}
	c.err = err
	c.failOps(err)
	c.wakeAll()
}
