package perf

import (
	"context"
	"errors"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/device"
	"github.com/gorxe/gorxe/internal/exchange"
	"github.com/gorxe/gorxe/internal/session"
	"github.com/gorxe/gorxe/roce"
)

// Client is the client side of a session, with a server of either kind.
type Client interface {
	Session() *session.Session
	// Run performs one run.
	Run(ctx context.Context, r Run) (*Row, error)
	// Finish tells the server that there are no more runs.
	Finish(ctx context.Context) error
	// Close ends the session. err is the reason if the session failed.
	Close(err error)
}

// gorxeClient is a Client of a gorxe server.
type gorxeClient struct{ *peerSession }

// NewClient starts a session with the gorxe server at the other side of conn. The Client owns conn;
// after an error the caller closes it.
func NewClient(
	ctx context.Context, dev *roce.Device, conn *exchange.Conn, gid device.GIDIndex, p *Params,
) (Client, error) {
	cfg := p.SessionConfig()
	cfg.GID = gid
	s, err := session.New(dev, conn.Local().AddrPort().Addr(), cfg)
	if err != nil {
		return nil, err
	}
	c := gorxeClient{&peerSession{Side: NewSide(s, p), conn: conn, active: true, proven: true}}
	if err := c.open(ctx); err != nil {
		c.Close(err)
		return nil, err
	}
	return c, nil
}

func (c gorxeClient) open(ctx context.Context) error {
	c.Side.Session.Expect(ctx, c.conn.Remote().AddrPort().Addr())
	qps, err := c.conn.Request(ctx, Service, c.Params, c.Side.Session.Local())
	if err != nil {
		return err
	}
	return c.Side.Session.Connect(ctx, qps)
}

// Session implements Client.
func (c gorxeClient) Session() *session.Session { return c.Side.Session }

// Run implements Client.
func (c gorxeClient) Run(ctx context.Context, r Run) (*Row, error) {
	if err := c.Prepare(r); err != nil {
		return nil, err
	}
	// Only the server of a bidirectional test starts before the client. The device answers or
	// retransmits its first packets as soon as the client's loop runs.
	if err := c.conn.Send(ctx,
		&exchange.Message{Kind: exchange.KindRun, Params: exchange.Encode(r)}); err != nil {
		return nil, err
	}
	if _, err := c.conn.Receive(ctx, exchange.KindReady); err != nil {
		return nil, err
	}
	own, peer, err := c.run(ctx, r, func() error { return nil })
	if err != nil {
		return nil, err
	}
	return NewRow(c.Params, r, c.Side.Session, own, peer)
}

// Finish implements Client. It has nothing to do: closing the connection tells the server.
func (c gorxeClient) Finish(context.Context) error { return nil }

// Close implements Client. It sends err to the server unless the server caused it.
func (c gorxeClient) Close(err error) {
	if err != nil && !errors.Is(err, exchange.ErrRemote) && !errors.Is(err, exchange.ErrGone) {
		if errors.Is(err, cli.ErrInterrupted) {
			err = errors.New("the client was interrupted")
		}
		c.conn.Refuse(err)
	}
	c.conn.Close()
	c.Side.Session.Close()
}
