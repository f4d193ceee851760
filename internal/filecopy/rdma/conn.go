package rdma

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/gorxe/gorxe/internal/filecopy"
	"github.com/gorxe/gorxe/transport/rftp"
)

// conn implements filecopy.Conn.
type conn struct{ *rftp.Conn }

// newConn returns a filecopy.Conn for c. The caller closes c.
func newConn(c *rftp.Conn) filecopy.Conn { return conn{c} }

// Open implements filecopy.Conn.
func (c conn) Open(ctx context.Context, param uint64) (filecopy.Session, error) {
	s, err := c.Conn.Open(ctx, binary.BigEndian.AppendUint64(nil, param))
	if err != nil {
		return nil, err
	}
	return session{s}, nil
}

// GetFree implements filecopy.Conn.
func (c conn) GetFree(ctx context.Context) (*filecopy.Block, error) {
	b, err := c.Conn.GetFree(ctx)
	if err != nil {
		return nil, err
	}
	return &filecopy.Block{Data: b.Data, Handle: b}, nil
}

// GetReady implements filecopy.Conn.
func (c conn) GetReady(ctx context.Context) (filecopy.Ready, error) {
	for {
		r, err := c.Conn.GetReady(ctx)
		if err != nil {
			return filecopy.Ready{}, err
		}
		e := filecopy.Ready{Session: r.Session}
		switch r.Kind {
		case rftp.Opened:
			if len(r.Params) != 8 {
				return e, fmt.Errorf("%w: parameters of %d bytes", rftp.ErrPeer, len(r.Params))
			}
			e.Kind, e.Param = filecopy.Opened, binary.BigEndian.Uint64(r.Params)
		case rftp.Data:
			b := r.Block
			if b.Offset > math.MaxInt64 {
				return e, errors.Join(fmt.Errorf("%w: a block at offset %d", rftp.ErrPeer,
					b.Offset),
					c.Conn.PutFree(b))
			}
			e.Kind = filecopy.Data
			e.Block = &filecopy.Block{Data: b.Data, Len: b.Len, Offset: int64(b.Offset), CRC: b.Tag,
				Session: b.Session, Seq: b.Seq, Handle: b}
		case rftp.Ended:
			e.Kind = filecopy.Ended
		case rftp.Aborted:
			e.Kind = filecopy.Aborted
		default:
			continue
		}
		return e, nil
	}
}

// PutFree implements filecopy.Conn.
func (c conn) PutFree(b *filecopy.Block) {
	// It fails only after the connection has ended, which the next call of another method tells.
	_ = c.Conn.PutFree(b.Handle.(*rftp.Block))
}

// Refuse implements filecopy.Conn.
func (c conn) Refuse(id uint32, text string) { _ = c.Conn.AbortSession(id, text) }

// session implements filecopy.Session.
type session struct{ *rftp.Sender }

// Send implements filecopy.Session.
func (s session) Send(b *filecopy.Block) error {
	out := b.Handle.(*rftp.Block)
	out.Len, out.Offset, out.Tag = b.Len, uint64(b.Offset), b.CRC
	err := s.Sender.Send(out)
	if err == nil {
		return nil
	}
	var abort *rftp.AbortError
	switch {
	case errors.As(s.Sender.Err(), &abort) && abort.Session != 0:
		// It reads like the answer about the file, which may arrive later.
		return said{filecopy.ErrStopped, abort.Text}
	case errors.Is(err, rftp.ErrEnded):
		return fmt.Errorf("%w: %w", filecopy.ErrStopped, err)
	}
	return err // the connection has ended
}

// said is an error that consists of the peer's reason for it.
type said struct {
	error
	text string
}

func (s said) Error() string { return "receiver: " + filecopy.Printable(s.text) }

func (s said) Unwrap() error { return s.error }

// reasonOf returns an error of a client that begins with the words of the server, if it has ended
// the connection.
func reasonOf(err error) error {
	var abort *rftp.AbortError
	if errors.As(err, &abort) && abort.Session == 0 {
		return said{err, abort.Text}
	}
	return err
}

// End implements filecopy.Session.
func (s session) End() error {
	s.Sender.End()
	return nil
}

// Abort implements filecopy.Session.
func (s session) Abort(text string) { s.Sender.Abort(text) }

// byeTime is how long a side waits for the other one to end the connection.
const byeTime = 5 * time.Second

// awaitEnd waits until the peer has sent everything, so that it gets the last message of this side
// before the connection is closed.
func awaitEnd(ctx context.Context, c *rftp.Conn) {
	ctx, cancel := context.WithTimeout(ctx, byeTime)
	defer cancel()
	for {
		r, err := c.GetReady(ctx)
		if err != nil {
			return
		}
		if r.Kind == rftp.Data {
			_ = c.PutFree(r.Block)
		}
	}
}

// finish ends a copy whose source is on this side.
func finish(ctx context.Context, c *rftp.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, byeTime)
	defer cancel()
	// The summary has arrived, so it does not matter if the sink is faster and has closed.
	if err := c.Finish(ctx); err != nil && !errors.Is(err, rftp.ErrPeerClosed) {
		return err
	}
	return nil
}

// end closes a connection, after an error with the reason.
func end(c *rftp.Conn, err error) error {
	if err != nil {
		c.Abort(err.Error())
	}
	return c.Close()
}
