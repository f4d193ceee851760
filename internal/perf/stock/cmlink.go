package stock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gorxe/gorxe/internal/cmconn"
	"github.com/gorxe/gorxe/internal/perftest"
	"github.com/gorxe/gorxe/roce"
)

const (
	messageSlots = 16 // receives posted; the protocol has one outstanding message
	messageBytes = 64 // of a slot, at least perftest.MaxMessage

	// peerQuiet is the time after which a silent peer is probed.
	peerQuiet = 20 * time.Second
)

// messageConn is the connection for perftest's messages when the sides use rdma_cm (-R): each
// message is a SEND on a separate queue pair. It implements perftest.MessageConn.
type messageConn struct{ c *cmconn.Conn }

// newMessageConn creates the queue pair. A nil gid lets Dial select the local GID.
func newMessageConn(dev *roce.Device, gid *int, quiet time.Duration) (*messageConn, error) {
	c, err := cmconn.New(dev,
		cmconn.Config{Slots: messageSlots, SlotBytes: messageBytes, Quiet: quiet, GIDIndex: gid})
	if err != nil {
		return nil, err
	}
	return &messageConn{c}, nil
}

// Send implements perftest.MessageConn.
func (m *messageConn) Send(ctx context.Context, b []byte) error {
	return linkError(m.c.Send(ctx, b))
}

// Receive implements perftest.MessageConn.
func (m *messageConn) Receive(ctx context.Context) ([]byte, error) {
	b, err := m.c.Receive(ctx)
	return b, linkError(err)
}

// WaitClosed implements perftest.MessageConn.
func (m *messageConn) WaitClosed(ctx context.Context) error {
	return linkError(m.c.WaitMessage(ctx))
}

// Close implements perftest.MessageConn.
func (m *messageConn) Close() error { return m.c.Close() }

// linkError returns the error of package perftest for an error of package cmconn.
func linkError(err error) error {
	s := new(cmconn.StatusError)
	switch {
	case errors.Is(err, cmconn.ErrClosed):
		return perftest.ErrGone
	case errors.Is(err, cmconn.ErrUnexpected):
		return fmt.Errorf("%w: %w", perftest.ErrProtocol, err)
	case !errors.As(err, &s):
		return err
	case s.Status == roce.WRFlushErr:
		return perftest.ErrGone
	case s.Status == roce.LocLenErr:
		return fmt.Errorf("%w: it sent more than %d bytes", perftest.ErrGarbage, messageBytes)
	}
	return fmt.Errorf("%w (%v)", perftest.ErrGone, s.Status)
}
