package rsocket

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"

	"github.com/gorxe/gorxe/internal/halfopen"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/roce/rsocket/core"
)

// Listener accepts connections. Its methods are safe for concurrent use.
type Listener struct {
	dev   *roce.Device
	l     *roce.Listener
	cfg   Config
	slots *halfopen.Slots
	ready chan pending

	ctx  context.Context // ends with Close
	stop context.CancelFunc
	done chan struct{} // closed when no more connections come
	err  error         // set before done is closed
	wg   sync.WaitGroup
}

// pending is a connection that waits for Accept.
type pending struct {
	conn *Conn
	slot *halfopen.Slot
}

// Listen makes the device accept rsockets at addr: "host:port", or ":port" for all addresses of the
// device. Port 0 means any free port, which Listener.Addr returns. Names of hosts and services are
// not allowed.
//
// Each peer is answered in a goroutine of the Listener, at most Config.MaxPending at a time.
// Close ends them all.
func Listen(dev *roce.Device, addr string, cfg Config) (*Listener, error) {
	l, err := listen(dev, addr, cfg)
	if err != nil {
		return nil, opError("listen", nil, nil, err)
	}
	return l, nil
}

func listen(dev *roce.Device, addr string, cfg Config) (*Listener, error) {
	if dev == nil {
		return nil, errNilDevice
	}
	cfg, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	if addr != "" && addr[0] == ':' {
		addr = "[::]" + addr
	}
	at, err := netip.ParseAddrPort(addr)
	if err != nil {
		return nil, err
	}
	rl, err := dev.Listen(at, roce.ListenOptions{Peers: cfg.Peers, Admit: cfg.Admit})
	if err != nil {
		return nil, err
	}
	l := &Listener{dev: dev, l: rl, cfg: cfg, slots: halfopen.New(cfg.MaxPending),
		ready: make(chan pending, cfg.MaxPending), done: make(chan struct{})}
	l.ctx, l.stop = context.WithCancel(context.Background())
	l.wg.Go(l.run)
	return l, nil
}

// Accept waits for the next connection. After Close it returns an error that matches net.ErrClosed.
func (l *Listener) Accept() (net.Conn, error) {
	c, err := l.AcceptConn()
	if err != nil {
		return nil, err
	}
	return c, nil
}

// AcceptConn is Accept with the type of the connection.
func (l *Listener) AcceptConn() (*Conn, error) {
	select {
	case p := <-l.ready:
		p.slot.Release()
		return p.conn, nil
	case <-l.done:
		return nil, opError("accept", nil, l.Addr(), l.err)
	}
}

// Addr returns the address that peers can dial.
func (l *Listener) Addr() net.Addr { return Addr{l.l.Addr()} }

// Close stops listening, and closes connections that Accept has not returned. Connections that it
// has returned continue.
func (l *Listener) Close() error {
	err := l.l.Close()
	l.stop()
	l.wg.Wait()
	for {
		select {
		case p := <-l.ready:
			p.slot.Release()
			_ = p.conn.abort()
		default:
			return err
		}
	}
}

// run begins to answer requests until the listener ends.
func (l *Listener) run() {
	defer close(l.done)
	for {
		r, err := l.l.Accept(l.ctx)
		if err == nil {
			err = l.begin(r)
		}
		if err != nil {
			l.err = err
			if l.ctx.Err() != nil || errors.Is(err, roce.ErrClosed) {
				l.err = net.ErrClosed
			}
			return
		}
	}
}

// begin answers a request in a new goroutine.
func (l *Listener) begin(r *roce.Request) error {
	one, stop := context.WithCancelCause(l.ctx)
	slot, err := l.slots.Take(l.ctx, r.RemoteAddr().Addr(), stop)
	if err != nil { // the listener is closed
		stop(nil)
		_ = r.Reject(nil)
		return err
	}
	l.wg.Go(func() {
		defer stop(nil)
		ctx, cancel := context.WithTimeout(one, handshake)
		defer cancel()
		c, err := l.accept(ctx, r)
		if err != nil {
			slot.Release()
			if l.cfg.Refused != nil {
				l.cfg.Refused(r.RemoteAddr(), err)
			}
			return
		}
		slot.Keep()
		l.ready <- pending{c, slot} // never waits: this request has a slot
	})
	return nil
}

// accept establishes one connection.
func (l *Listener) accept(ctx context.Context, r *roce.Request) (*Conn, error) {
	peer, err := core.ParseHello(r.PrivateData())
	if err != nil {
		return nil, errors.Join(err, r.RejectWith(roce.RejectUnsupported, nil))
	}
	e, err := newEndpoint(l.dev, &l.cfg)
	if err != nil {
		return nil, errors.Join(err, r.RejectWith(roce.RejectNoResources, nil))
	}
	s := e.newStream(&l.cfg)
	s.Open(peer)
	own := s.Hello()
	rc, err := r.Accept(ctx, e.qp,
		roce.AcceptOptions{ConnectOptions: l.cfg.Connect, PrivateData: own.Append(nil)})
	if err != nil {
		return nil, errors.Join(err, e.close())
	}
	return newConn(e, rc, s, &l.cfg), nil
}
