package rping

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gorxe/gorxe/internal/cmconn"
	"github.com/gorxe/gorxe/internal/session"
	"github.com/gorxe/gorxe/roce"
)

var (
	errPeer      = errors.New("rping: the peer does not speak rping's protocol")
	errOperation = errors.New("rping: an operation failed")
)

// slots is the number of receives to keep posted. The sides send in turn, so one message is
// outstanding at a time.
const slots = 4

// side is one side of a connection. Its memory contains the text that is sent and the text that
// comes back.
type side struct {
	*cmconn.Conn
	size int // of a text
}

// newSide creates the queue pair and the memory. A nil gid lets the route select the local GID. It
// probes a peer that is silent for quiet; 0 means never.
func newSide(dev *roce.Device, gid *int, size int, quiet time.Duration) (*side, error) {
	c, err := cmconn.New(dev, cmconn.Config{
		Slots: slots, SlotBytes: infoLen, Memory: 2 * size, Quiet: quiet,
		GIDIndex: gid, Access: roce.LocalWrite | roce.RemoteWrite | roce.RemoteRead,
	})
	if err != nil {
		return nil, err
	}
	return &side{c, size}, nil
}

// source returns the text that is sent.
func (s *side) source() []byte { return s.MR.Bytes()[s.Memory():][:s.size] }

// sink returns the text that comes back.
func (s *side) sink() []byte { return s.MR.Bytes()[s.Memory()+s.size:][:s.size] }

// announce sends a message that names a buffer.
func (s *side) announce(ctx context.Context, b buffer) error {
	return failure(s.Send(ctx, b.marshal()))
}

// do posts a work request and waits until it has completed.
func (s *side) do(ctx context.Context, wr roce.SendWR) error { return failure(s.Do(ctx, wr)) }

// receive waits for the next message.
func (s *side) receive(ctx context.Context) (buffer, error) {
	b, err := s.Receive(ctx)
	if err != nil {
		return buffer{}, failure(err)
	}
	if len(b) != infoLen {
		return buffer{}, fmt.Errorf("%w: it sent %d bytes instead of %d", errPeer, len(b), infoLen)
	}
	return parse(b), nil
}

// receiveWithin is receive with a time limit; 0 means none.
func (s *side) receiveWithin(ctx context.Context, limit time.Duration) (buffer, error) {
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, limit, session.ErrIdle)
		defer cancel()
	}
	return s.receive(ctx)
}

func failure(err error) error {
	if s := new(cmconn.StatusError); errors.As(err, &s) {
		return fmt.Errorf("%w: %w", errOperation, err)
	}
	if errors.Is(err, cmconn.ErrUnexpected) {
		return fmt.Errorf("%w: %w", errPeer, err)
	}
	return err
}
