package slidingwindow

import (
	"context"
	"encoding/binary"
	"fmt"
	"runtime"
	"time"

	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/internal/ends"
)

// pollACKs is the ACK poller: a goroutine that takes the receiver's SENDs and moves the tail, until ctx ends.
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
			_ = s.broken(err) // whoever sends gets it
			s.stir()
			return
		}
		s.stir()
	}
}

// awaitACKs waits for ACKs. On a device with Auto progress it sleeps until the NIC's thread has some. With Manual progress it polls while
// blocks are under way, in turns with who sends: neither keeps the device from the other for longer than a
// look. It leaves the device alone while there is nothing to come.
func (s *Sender) awaitACKs(ctx context.Context) (int, error) {
	if !s.manual {
		return s.end.Recv.Wait(ctx, s.ackWCs[:])
	}
	var until time.Time
	for {
		if n := s.end.Recv.Poll(s.ackWCs[:]); n > 0 {
			return n, nil
		}
		switch {
		case s.tail.Load() == s.sent.Load():
			select {
			case <-s.work:
			case <-ctx.Done():
				return 0, ctx.Err()
			}
			until = time.Time{}
		case until.IsZero():
			until = time.Now().Add(s.cfg.Spin)
		case time.Now().After(until):
			return s.end.Recv.Wait(ctx, s.ackWCs[:])
		}
		runtime.Gosched()
	}
}

// free takes n ACKs: the blocks they tell of are the sender's again. This is the paper's RmFree.
func (s *Sender) free(n int) error {
	for i := range s.ackWCs[:n] {
		wc := &s.ackWCs[i]
		if wc.Status != roce.Success {
			return ends.Failed(wc)
		}
		released := binary.BigEndian.Uint64(s.acks.Bytes()[wc.ID*ackLen:])
		if tail := s.tail.Load(); wc.ByteLen != ackLen || released < tail || released > s.sent.Load() {
			return fmt.Errorf("%w: an ACK of %d bytes up to %d where %d were acknowledged", ErrPeer, wc.ByteLen, released, tail)
		}
		s.tail.Store(released)
		if err := s.postRecv(wc.ID); err != nil {
			return err
		}
	}
	return nil
}

// stir wakes who waits for the window.
func (s *Sender) stir() { notify(s.moved) }

func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
