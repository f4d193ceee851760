package slidingwindow

import (
	"context"
	"encoding/binary"
	"fmt"
	"runtime"
	"time"

	"github.com/gorxe/gorxe/internal/endpoint"
	"github.com/gorxe/gorxe/roce"
)

// pollACKs is the ACK poller: it receives the receiver's SENDs and moves the tail until ctx ends.
func (s *Sender) pollACKs(ctx context.Context) {
	defer s.poller.Done()
	for {
		n, err := s.awaitACKs(ctx)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			err = s.free(n)
		}
		if err != nil {
			_ = s.broken(err) // the next call that sends returns it
			s.signalMoved()
			return
		}
		s.signalMoved()
	}
}

// awaitACKs waits for ACKs. With Auto progress it sleeps until the device has some. With Manual
// progress it polls while blocks are outstanding, alternating with the sending goroutine. It leaves
// the device alone while nothing is expected.
func (s *Sender) awaitACKs(ctx context.Context) (int, error) {
	if !s.manual {
		return s.ep.RecvCQ.Wait(ctx, s.ackWCs[:])
	}
	var until time.Time
	for {
		if n := s.ep.RecvCQ.Poll(s.ackWCs[:]); n > 0 {
			return n, nil
		}
		switch {
		case s.tail.Load() == s.sent.Load():
			s.settle()
			select {
			case <-s.work:
			case <-ctx.Done():
				return 0, ctx.Err()
			}
			until = time.Time{}
		case until.IsZero():
			until = time.Now().Add(s.cfg.Spin)
		case time.Now().After(until):
			return s.ep.RecvCQ.Wait(ctx, s.ackWCs[:])
		}
		runtime.Gosched()
	}
}

// settleTurns bounds the steps of settle.
const settleTurns = 16

// settle drives the device until it is idle: the receiver's last SEND still needs an
// acknowledgment, and the device may not be driven again soon.
func (s *Sender) settle() {
	for i := 0; i < settleTurns && s.ep.Dev.Progress() > 0; i++ {
	}
}

// free processes n ACKs: their blocks may be reused. This is the paper's RmFree.
func (s *Sender) free(n int) error {
	for i := range s.ackWCs[:n] {
		wc := &s.ackWCs[i]
		if wc.Status != roce.Success {
			return endpoint.StatusError(wc)
		}
		released := binary.BigEndian.Uint64(s.acks.Bytes()[wc.ID*ackLen:])
		tail, sent := s.tail.Load(), s.sent.Load()
		if wc.Opcode != roce.WCRecv || wc.ByteLen != ackLen || released < tail || released > sent {
			return fmt.Errorf("%w: %v of %d bytes acknowledges %d blocks; %d were sent and %d acknowledged before", ErrPeer, wc.Opcode, wc.ByteLen, released, sent, tail)
		}
		// Before the tail moves: the next block may be acknowledged as soon as it is sent.
		if err := s.postRecv(wc.ID); err != nil {
			return err
		}
		s.tail.Store(released)
	}
	return nil
}

// signalMoved wakes a goroutine that waits for the window.
func (s *Sender) signalMoved() { notify(s.moved) }

func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
