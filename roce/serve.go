package roce

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/gorxe/gorxe/internal/halfopen"
	"github.com/gorxe/gorxe/internal/limit"
	"github.com/gorxe/gorxe/roce/cm"
)

// Defaults of ServeConfig.
const (
	DefaultMaxConns        = 1024
	DefaultMaxConnsPerPeer = 256
	DefaultMaxPending      = 256
	DefaultAcceptTimeout   = 5 * time.Second
)

// Handler serves a connection that Serve has accepted. Serve calls it in its own goroutine. ctx is
// canceled when the connection ends, and then context.Cause returns the error of Conn.Err, or when
// the context of Serve ends. When the Handler returns, Serve closes the connection. An error that
// it returns is logged (WithLogger).
type Handler func(ctx context.Context, c *Conn) error

// ServeConfig describes the connections that Serve accepts. The zero value suits most programs.
type ServeConfig struct {
	// PD is the protection domain of the QPs. Nil: each connection has its own, QP.PD, and Serve
	// closes all QPs, SRQs, memory regions, windows and buffer pools in it with the connection.
	PD *PD
	// QP describes the QP of a connection, which Serve creates before it accepts the connection and
	// closes afterwards. Without SendCQ, the QP has its own CQ (QP.SendCQ). Type must be RC or UC;
	// peers that request another type are refused with RejectUnsupported. With an SRQ, set PD to
	// the PD of its buffers. With an SRQ or a RecvCQ that several connections share, a receive can
	// complete before the Handler of its connection is called. The QP is in StateRTR then and
	// cannot send yet: hold answers until the Handler is called.
	QP QPConfig
	// Accept holds the options of Request.Accept. Prepare can change them for one connection.
	Accept AcceptOptions
	// Listen holds the options of Device.Listen. Listener.Serve ignores them.
	Listen ListenOptions

	// Prepare, if not nil, is called for each request before it is accepted, in the goroutine of
	// the connection. It may post receives to q, create objects in q.PD(), and change o, for
	// example o.PrivateData. If it returns an error, the peer is refused, with the Reason and the
	// PrivateData of a *RejectError, otherwise with RejectConsumer. ctx is canceled when the
	// connection has ended, also if it was never established.
	Prepare func(ctx context.Context, r *Request, q *QP, o *AcceptOptions) error
	// Done, if not nil, is called once for each Prepare that returned nil, when the Handler has
	// returned or the connection was not established, in the same goroutine. It releases what
	// Prepare has created in a PD that connections share, and posts receives of an SRQ again. q is
	// still open then, unless the Handler has closed it. Without Prepare, it is called for each QP.
	Done func(q *QP)

	// AcceptTimeout limits the time of Request.Accept, until the connection is established. 0:
	// DefaultAcceptTimeout. In virtual time only Request.Accept itself limits it.
	AcceptTimeout time.Duration
	// MaxConns limits the number of connections, including those that are being established;
	// MaxConnsPerPeer those of one peer: an IPv4 address or an IPv6 /64. Further peers are refused
	// with RejectNoResources. 0: DefaultMaxConns, DefaultMaxConnsPerPeer; negative: no limit.
	MaxConns, MaxConnsPerPeer int
	// MaxPending limits the number of connections that are being established. If it is reached, a
	// new request waits, and after 1 s replaces the oldest one of the peer that has the most, so
	// forged requests, whose connections are never established, do not block peers. In a flood of
	// them, it waits only for 50 ms. Requests of one peer give its older ones up to 4 s if its
	// connections take so long. 0: DefaultMaxPending.
	MaxPending int

	// Go starts a goroutine. Nil: the go statement. For virtual time: loopback.Sim.Go.
	Go func(func())
}

// Serve listens at addr and calls h for each connection until ctx is done: see Listener.Serve.
//
// Errors: those of Listen and Listener.Serve.
func (d *Device) Serve(ctx context.Context, addr netip.AddrPort, c ServeConfig, h Handler) error {
	checkContext(ctx)
	l, err := d.Listen(addr, c.Listen)
	if err != nil {
		return err
	}
	return l.Serve(ctx, c, h)
}

// Serve accepts connections and calls h for each of them in its own goroutine. It limits the number
// of connections, releases their objects when h returns, and closes the listener in the end.
//
// Serve returns nil after ctx is done and all Handlers, whose contexts are canceled, have returned.
// If it ends earlier, because the listener or the Device was closed or the network interface was
// removed, it waits for the Handlers, too, and then returns the error.
//
// With Manual progress, a Handler runs the protocol by its calls, as everywhere.
//
// Errors: ErrInvalid, ErrForeign, ErrClosed, that of Device.Err.
func (l *Listener) Serve(ctx context.Context, c ServeConfig, h Handler) error {
	defer l.Close()
	s, err := newServer(l, c, h)
	if err != nil {
		return err
	}
	inner, cancel := context.WithCancel(ctx)
	defer cancel()
	for err == nil {
		if err = inner.Err(); err != nil { // Accept prefers requests, which may never end
			break
		}
		var r *Request
		if r, err = l.Accept(inner); err == nil {
			s.admit(inner, r)
		}
	}
	_ = l.Close() // fails only if the device is closed
	cancel()
	s.wait()
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// server is the state of one call of Serve.
type server struct {
	dev    *Device
	c      ServeConfig
	handle Handler
	slots  *halfopen.Slots

	mu     sync.Mutex
	shares *limit.Shares
	active int
	idle   chan struct{} // capacity 1: active became 0
}

func newServer(l *Listener, c ServeConfig, h Handler) (*server, error) {
	switch {
	case h == nil:
		return nil, fmt.Errorf("%w: Serve needs a Handler", ErrInvalid)
	case c.QP.Type == UD || l.datagram:
		return nil, fmt.Errorf("%w: Serve accepts connections: use ListenUD for datagrams",
			ErrInvalid)
	case c.PD != nil && c.PD.dev != l.dev:
		return nil, ErrForeign
	case l.dev.virtual && c.Go == nil:
		return nil, fmt.Errorf("%w: set ServeConfig.Go, for example to loopback.Sim.Go",
			ErrVirtualTime)
	}
	setDefault(&c.MaxConns, DefaultMaxConns)
	setDefault(&c.MaxConnsPerPeer, DefaultMaxConnsPerPeer)
	setDefault(&c.MaxPending, DefaultMaxPending)
	if c.AcceptTimeout <= 0 {
		c.AcceptTimeout = DefaultAcceptTimeout
	}
	if c.Go == nil {
		c.Go = func(f func()) { go f() }
	}
	return &server{
		dev: l.dev, c: c, handle: h, slots: halfopen.New(c.MaxPending),
		shares: limit.NewShares(int64(c.MaxConnsPerPeer), int64(c.MaxConns)),
		idle:   make(chan struct{}, 1),
	}, nil
}

// admit starts the goroutine of a request, or refuses it.
func (s *server) admit(ctx context.Context, r *Request) {
	ctx, stop := context.WithCancelCause(ctx)
	var slot *halfopen.Slot // nil in virtual time
	peer := r.RemoteAddr().Addr()
	if !s.dev.virtual {
		var err error
		if slot, err = s.slots.Take(ctx, peer, stop); err != nil { // Serve ends
			stop(nil)
			_ = r.RejectWith(RejectNoResources, nil)
			return
		}
	}
	s.mu.Lock()
	ok := s.shares.Take(peer, 1)
	if ok {
		s.active++
	}
	s.mu.Unlock()
	if !ok {
		slot.Release()
		stop(nil)
		_ = r.RejectWith(RejectNoResources, nil)
		return
	}
	s.c.Go(func() {
		defer s.ended(peer)
		defer stop(nil)
		defer slot.Release()
		s.serve(ctx, r, slot)
	})
}

// ended records the end of the goroutine of a request.
func (s *server) ended(peer netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shares.Return(peer, 1)
	if s.active--; s.active == 0 {
		select {
		case s.idle <- struct{}{}:
		default:
		}
	}
}

// wait waits until the goroutines of all requests have ended. No new one is started any more.
func (s *server) wait() {
	done := func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.active == 0
	}
	switch {
	case s.dev.virtual:
		for !done() && s.dev.wait(context.Background(), done) == nil {
		}
	default:
		for !done() {
			<-s.idle
		}
	}
}

// serve serves one request.
func (s *server) serve(ctx context.Context, r *Request, slot *halfopen.Slot) {
	pd, q, err := s.create(r)
	if err != nil {
		r.refuseFor(err)
		return
	}
	defer s.destroy(pd, q)
	o := s.c.Accept
	if s.c.Prepare != nil {
		if err := s.c.Prepare(ctx, r, q, &o); err != nil {
			r.refuseFor(err)
			return
		}
	}
	if s.c.Done != nil {
		defer s.c.Done(q)
	}
	c, err := s.accept(ctx, r, q, o)
	if err != nil {
		slot.Release()
		r.refuseFor(err)
		return
	}
	defer c.Close()
	kept := slot.Keep()
	slot.Release()
	if !kept { // replaced while the peer confirmed; ctx is canceled
		return
	}
	ctx, cancel := c.Context(ctx)
	defer cancel()
	if err := s.handle(ctx, c); err != nil {
		s.dev.log.line(slog.LevelWarn, r.RemoteAddr().Addr(), "handler failed",
			append(c.attrs(), slog.Any("error", err))...)
	}
}

// create creates the objects of a connection.
func (s *server) create(r *Request) (pd *PD, q *QP, err error) {
	want := RC
	if r.req.Transport == cm.UC {
		want = UC
	}
	if want != s.c.QP.Type {
		return nil, nil, fmt.Errorf("%w: the peer requests a QP of type %v",
			&RejectError{Reason: RejectUnsupported}, want)
	}
	if pd = s.c.PD; pd == nil {
		if pd, err = s.dev.allocTemporaryPD(); err != nil {
			return nil, nil, noResources(err)
		}
	}
	if q, err = s.dev.CreateQP(pd, s.c.QP); err != nil {
		s.destroy(pd, nil)
		return nil, nil, noResources(err)
	}
	return pd, q, nil
}

func noResources(err error) error {
	return fmt.Errorf("%w: %w", &RejectError{Reason: RejectNoResources}, err)
}

// destroy closes the objects of a connection. They are closed already if the device is.
func (s *server) destroy(pd *PD, q *QP) {
	if q != nil {
		_ = q.Close()
	}
	if pd != s.c.PD {
		_ = pd.closeAll()
	}
}

// accept establishes the connection.
func (s *server) accept(ctx context.Context, r *Request, q *QP, o AcceptOptions) (*Conn, error) {
	if !s.dev.virtual {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.c.AcceptTimeout)
		defer cancel()
	}
	return r.Accept(ctx, q, o)
}
