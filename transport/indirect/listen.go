package indirect

import (
	"context"
	"errors"
	"net/netip"

	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/internal/accept"
)

// Listener accepts connections. Its methods are safe for concurrent use.
type Listener struct {
	ep *Endpoint
	l  *roce.Listener
	a  *accept.Acceptor[*Conn]
}

// Listen makes the Endpoint accept connections at addr. See roce.Device.Listen. In virtual time it
// returns roce.ErrVirtualTime: use Prepare and Join there.
func (e *Endpoint) Listen(addr netip.AddrPort) (*Listener, error) {
	r, err := accept.Listen(e.dev, addr,
		roce.ListenOptions{Backlog: e.cfg.MaxConns, Peers: e.cfg.Peers})
	if err != nil {
		return nil, err
	}
	l := &Listener{ep: e, l: r}
	l.a = accept.New(accept.Config[*Conn]{
		Listener: r, Check: l.check, Open: l.open, Refused: e.cfg.Refused,
		// Peers that never confirm must leave space for others.
		Max: e.cfg.MaxConns / 2,
	})
	return l, nil
}

// Addr returns the address that the Listener listens on.
func (l *Listener) Addr() netip.AddrPort { return l.l.Addr() }

// Close stops listening. Connections that Accept has returned continue.
func (l *Listener) Close() error { return l.a.Close() }

// Accept waits for a peer and connects to it. Its error is that of ctx, roce.ErrClosed, or that of
// a device that failed. A peer that does not speak the protocol or is configured differently is
// rejected, and several requests are answered at a time, so that a peer that does not exist keeps
// nobody waiting; see Config.Refused. Peers that connect while nobody calls Accept wait.
func (l *Listener) Accept(ctx context.Context) (*Conn, error) { return l.a.Accept(ctx) }

// check rejects a request of another protocol, or of a peer that is configured differently.
func (l *Listener) check(q *roce.Request) error {
	var peer Params
	if err := peer.parse(q.PrivateData()); err != nil {
		return errors.Join(err, q.Reject(nil))
	}
	cfg := &l.ep.cfg
	own := Params{Entries: uint16(cfg.Entries), Segment: uint32(cfg.Segment)}
	if err := peer.fits(&own); err != nil {
		return errors.Join(err, q.Reject(own.append(nil)))
	}
	return nil
}

// open accepts a request.
func (l *Listener) open(ctx context.Context, q *roce.Request) (*Conn, error) {
	var peer Params
	if err := peer.parse(q.PrivateData()); err != nil {
		return nil, err
	}
	c, err := l.ep.prepare(q.RemoteAddr().Addr())
	if err != nil {
		return nil, errors.Join(err, q.RejectWith(roce.RejectNoResources, nil))
	}
	// Requests may arrive as soon as the peer has its answer, before the peer confirms.
	if err := c.join(ctx, gidOf(q.RemoteAddr()), &peer); err != nil {
		return nil, errors.Join(err, q.Reject(nil), c.Close())
	}
	o := roce.AcceptOptions{ConnectOptions: l.ep.cfg.RC, PrivateData: c.own.append(nil)}
	rc, err := q.Accept(ctx, c.qp, o)
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	if err := c.hold(rc); err != nil {
		return nil, err
	}
	return c, nil
}
