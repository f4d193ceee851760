package rdma

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"

	"github.com/gorxe/gorxe/internal/filecopy"
	"github.com/gorxe/gorxe/internal/filecopy/record"
	"github.com/gorxe/gorxe/internal/filecopy/sink"
	"github.com/gorxe/gorxe/internal/filecopy/source"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/rftp"
)

const (
	// connectTime is how long a connection may take to be established.
	connectTime = 10 * time.Second
	// handshakeTime is how long the handshake may take.
	handshakeTime = 30 * time.Second
)

// Client is a connection to a Server. Push or Pull can be called once.
type Client struct {
	conn  *rftp.Conn
	token filecopy.Token
}

// Dial connects to a server. token is nil if there is none.
func Dial(
	ctx context.Context, dev *roce.Device, addr netip.AddrPort, token filecopy.Token,
	cfg rftp.Config,
) (*Client, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	cfg.Hold = true // memory is allocated when the direction is known
	c, err := rftp.Dial(ctx, dev, addr, cfg)
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("no answer within %v: start 'gorxe recv' there first, on the interface with "+
			"that address; hosts outside of its subnets need --allow there", connectTime)
	}
	var rejected *roce.RejectError
	if errors.As(err, &rejected) {
		switch rejected.Reason {
		case roce.RejectNoListener:
			err = fmt.Errorf("%w: start 'gorxe recv' there first, with the same --port", err)
		case roce.RejectNoResources:
			err = fmt.Errorf("%w: it may have as many senders as it serves at a time: try again later, "+
				"or start it with a larger --max-sessions", roce.ErrRefused)
		}
	}
	if err != nil {
		return nil, err
	}
	return &Client{c, token}, nil
}

// BlockSize returns the agreed block size in bytes.
func (c *Client) BlockSize() int { return c.conn.BlockSize() }

// Streams returns the agreed number of data QPs.
func (c *Client) Streams() int { return c.conn.DataQPs() }

// Close closes the connection.
func (c *Client) Close() error { return c.conn.Close() }

func (c *Client) connect(ctx context.Context, r *record.Request) (*record.Ready, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, handshakeTime,
		fmt.Errorf("the receiver did not answer within %v", handshakeTime))
	defer cancel()
	ready, err := filecopy.Connect(ctx, c.conn, c.token, r)
	if err != nil && context.Cause(ctx) != nil {
		err = context.Cause(ctx)
	}
	return ready, err
}

// Push sends files. progress, if set, is called with the Source before it runs.
func (c *Client) Push(
	ctx context.Context, r *record.Request, cfg source.Config, progress func(*source.Source),
) (*source.Result, error) {
	if _, err := c.connect(ctx, r); err != nil {
		return nil, errors.Join(err, end(c.conn, err))
	}
	s := source.New(newConn(c.conn), c.conn.BlockSize(), cfg)
	if progress != nil {
		progress(s)
	}
	result, err := s.Run(ctx)
	return result, c.sent(ctx, err)
}

// sent ends a push.
func (c *Client) sent(ctx context.Context, err error) error {
	if err != nil && !errors.Is(err, source.ErrFailed) {
		return errors.Join(reasonOf(err), end(c.conn, err))
	}
	return errors.Join(err, finish(ctx, c.conn), c.conn.Close())
}

// Pull receives files. target returns where they are stored, for the server's answer.
// progress, if set, is called with the Sink before it runs.
func (c *Client) Pull(
	ctx context.Context, r *record.Request, target func(*record.Ready) (sink.Config, error),
	progress func(*sink.Sink),
) (sum record.Summary, err error) {
	ready, err := c.connect(ctx, r)
	if err == nil {
		err = c.conn.Grant()
	}
	var cfg sink.Config
	if err == nil {
		cfg, err = target(ready)
	}
	if err == nil {
		s := sink.New(newConn(c.conn), cfg)
		if progress != nil {
			progress(s)
		}
		sum, err = s.Run(ctx)
	}
	return sum, c.received(ctx, err)
}

// PullTo receives one file and writes it to out.
func (c *Client) PullTo(
	ctx context.Context, r *record.Request, out io.Writer,
) (sum record.Summary, err error) {
	if _, err = c.connect(ctx, r); err == nil {
		err = c.conn.Grant()
	}
	if err == nil {
		sum, err = sink.Write(ctx, newConn(c.conn), out, 0)
	}
	return sum, c.received(ctx, err)
}

// received ends a pull.
func (c *Client) received(ctx context.Context, err error) error {
	if err != nil {
		return errors.Join(reasonOf(err), end(c.conn, err))
	}
	awaitEnd(ctx, c.conn)
	return c.conn.Close()
}
