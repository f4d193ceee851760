package messenger

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"github.com/gorxe/gorxe/roce"
)

// Serve listens at addr and calls serve for each connection, in its own goroutine, until ctx is
// done. When serve returns, Serve closes the connection; it ignores the error, which serve logs if
// that is of use. The context of serve ends with ctx. Then Serve returns nil after all calls of
// serve have returned. For a server that only answers calls, serve is Calls(handler).
//
// Errors: those of roce.Device.Serve; roce.ErrInvalid for a Config out of range, a nil dev or
// serve, and without Config.Go in virtual time.
func Serve(ctx context.Context, dev *roce.Device, addr netip.AddrPort, cfg Config,
	serve func(ctx context.Context, c *Conn) error) error {
	c, h, err := ServeConfig(dev, cfg, serve)
	if err != nil {
		return err
	}
	return dev.Serve(ctx, addr, c, h)
}

// Calls returns a function for Serve that answers the calls of a connection: see Conn.Handle. For a
// nil Handler it returns nil, which Serve refuses.
func Calls(h Handler) func(ctx context.Context, c *Conn) error {
	if h == nil {
		return nil
	}
	return func(ctx context.Context, c *Conn) error { return c.Handle(ctx, h) }
}

// ServeConfig returns the arguments with which roce.Device.Serve or roce.Listener.Serve does what
// Serve does, for servers that set limits in the roce.ServeConfig or have a listener of their own.
// Do not change its fields PD, QP, Accept.ConnectOptions, Prepare and Done; Go is that of cfg.
//
// Errors: roce.ErrInvalid for a Config out of range, a nil dev or serve, and without Config.Go in
// virtual time.
func ServeConfig(dev *roce.Device, cfg Config, serve func(ctx context.Context, c *Conn) error) (
	roce.ServeConfig, roce.Handler, error) {
	if err := needsDevice(dev); err != nil {
		return roce.ServeConfig{}, nil, err
	}
	cfg, err := cfg.withDefaults()
	if err == nil && serve == nil {
		err = fmt.Errorf("%w: Serve needs a function for each connection, such as Calls",
			roce.ErrInvalid)
	}
	if err == nil && dev.Virtual() && cfg.Go == nil {
		err = needsGo()
	}
	if err != nil {
		return roce.ServeConfig{}, nil, err
	}
	s := &server{dev: dev, cfg: cfg, serve: serve}
	c := roce.ServeConfig{
		PD: cfg.PD, QP: cfg.qpConfig(), Prepare: s.prepare, Done: s.done,
		Accept: roce.AcceptOptions{ConnectOptions: cfg.Connect},
	}
	if dev.Virtual() {
		c.Go = cfg.Go
	}
	return c, s.handle, nil
}

// server is what the connections of a ServeConfig share.
type server struct {
	dev   *roce.Device
	cfg   Config
	serve func(ctx context.Context, c *Conn) error

	// conns has the connections, also those that are being established: a *served by its *roce.QP.
	conns sync.Map
}

// served is a connection of a server.
type served struct {
	*Conn
	ctx context.Context // ends with Serve
}

// prepare creates the buffers of a connection, and posts its receives.
func (s *server) prepare(ctx context.Context, r *roce.Request, q *roce.QP,
	o *roce.AcceptOptions) error {
	_, ok, err := decodeHello(r.PrivateData())
	if err != nil {
		return errors.Join(err, &roce.RejectError{Reason: roce.RejectUnsupported})
	}
	c, err := newConn(s.dev, q, s.cfg)
	if err != nil {
		return errors.Join(err, &roce.RejectError{Reason: roce.RejectNoResources})
	}
	if ok {
		o.PrivateData = c.hello()
	}
	s.conns.Store(q, &served{c, ctx})
	return nil
}

// done releases a connection.
func (s *server) done(q *roce.QP) {
	if v, ok := s.conns.LoadAndDelete(q); ok {
		_ = v.(*served).release() // fails if the device is closed
	}
}

// handle serves an established connection.
func (s *server) handle(_ context.Context, conn *roce.Conn) error {
	v, _ := s.conns.Load(conn.QP()) // which prepare has stored
	c := v.(*served)
	if err := c.start(conn, conn.RemoteAddr(), conn.PrivateData()); err != nil {
		return err
	}
	// The context of roce.Handler would end with the connection, before serve has received its last
	// messages.
	return errors.Join(s.serve(c.ctx, c.Conn), c.Close())
}
