package slidingwindow

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/internal/ends"
)

// pollACKs is the ACK poller: a goroutine that takes the receiver's SENDs and moves the tail, until ctx ends.
func (s *Sender) pollACKs(ctx context.Context) {
	defer s.poller.Done()
	for {
		n, err := s.end.Recv.Wait(ctx, s.ackWCs[:])
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

// free takes n ACKs: the blocks they tell of are the sender's again. This is the paper's RmFree.
func (s *Sender) free(n int) error {
	for i := range s.ackWCs[:n] {
		wc := &s.ackWCs[i]
		if wc.Status != roce.Success {
			return ends.Failed(wc)
		}
		released := binary.BigEndian.Uint64(s.acks.Bytes()[wc.ID*ackLen:])
		// What is acknowledged is a window's size ahead at most; the head itself is the other goroutine's.
		if tail := s.tail.Load(); wc.ByteLen != ackLen || released < tail || released-tail > uint64(s.cfg.Blocks) {
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
func (s *Sender) stir() {
	select {
	case s.moved <- struct{}{}:
	default:
	}
}
