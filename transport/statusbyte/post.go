package statusbyte

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/gorxe/gorxe/internal/endpoint"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/internal/blocks"
)

const (
	// blockWRs is the number of work requests per block.
	blockWRs = 2
	// earlyFrom is the block size in bytes from which building a block takes longer than a READ.
	earlyFrom = blocks.TransmitFrom
)

// send writes the header before block i's data and posts the two WRITEs once a receive block is
// empty. The caller holds turn.
func (s *Sender) send(ctx context.Context, i int, h *header) error {
	j, err := s.target(ctx)
	if err != nil {
		return err
	}
	if err := s.space(ctx, blockWRs); err != nil {
		return err
	}
	at := i * stride(s.cfg.BlockSize)
	h.put(s.data.Bytes()[at:])
	wrs := &s.wrs
	wrs[1].SGEs[0] = s.data.SGE(at, HeaderLen+int(h.length))
	wrs[1].RemoteAddr = s.peer.data + uint64(j)*uint64(s.peer.stride)
	wrs[2].RemoteAddr = s.peer.status + uint64(j)
	wrs[2].ID = uint64(i)
	early := s.early(j, int(h.length))
	if early {
		if err := s.postRead(j); err != nil {
			return err
		}
		s.ep.Dev.Progress() // with Manual progress: the READ leaves before the data is built
	}
	if err := s.ep.QP.PostSend(s.wrs[1:]...); err != nil {
		return s.broken(err)
	}
	s.used += blockWRs
	s.signaled++
	if !early { // otherwise the NIC is writing to the view
		s.view[j] = HasData
	}
	s.sendAt = (j + 1) % len(s.view)
	s.packets[h.device]++
	s.stats.Packets++
	s.stats.Bytes += uint64(h.length)
	return nil
}

// early reports whether the READ is posted before the WRITEs into block j. The READ would come next
// in any case because no other block is empty. Before the WRITEs, and in a separate batch, it is
// answered while a large block is built and sent. It reports on the blocks before this one.
func (s *Sender) early(j, length int) bool {
	if length < earlyFrom || !s.fits(1+blockWRs, 2) {
		return false
	}
	busy := false
	for k, v := range s.view {
		if v == Empty && k != j {
			return false
		}
		busy = busy || v == HasData
	}
	return busy
}

// fits reports whether wrs work requests, of which signaled are signaled, fit into both queues now.
func (s *Sender) fits(wrs, signaled int) bool {
	return s.used+wrs <= s.cfg.SendDepth && s.signaled+signaled <= s.cfg.CQDepth
}

// target finds an empty receive block. It skips blocks with data and those that the receiver keeps.
// If no block is left it synchronizes until one is empty.
func (s *Sender) target(ctx context.Context) (int, error) {
	for {
		if s.err != nil {
			return 0, s.err
		}
		for k := range s.view {
			if s.reading {
				break // a READ whose waiter gave up still writes to the array
			}
			if j := (s.sendAt + k) % len(s.view); s.view[j] == Empty {
				s.pause = 0
				return j, nil
			}
		}
		n, err := s.sync(ctx)
		if err != nil {
			return 0, err
		}
		if n == 0 {
			if err := s.rest(ctx); err != nil {
				return 0, err
			}
		}
	}
}

// rest sleeps after a READ that found no empty block: the first time not at all, then longer each
// time.
func (s *Sender) rest(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.pause > 0 {
		time.Sleep(s.pause)
	}
	s.pause = min(max(minPause, 2*s.pause), s.cfg.Idle)
	return nil
}

// sync fetches the receiver's array and returns the number of empty blocks. The READ is executed
// after all WRITEs posted before it (IBA 9.5), so it never reports a block as empty that is still
// to be written. For the block whose WRITEs follow it, its value is ignored. Nothing else is posted
// until it completes.
func (s *Sender) sync(ctx context.Context) (int, error) {
	if s.err != nil {
		return 0, s.err
	}
	if !s.reading {
		// A READ right after the WRITEs would be answered before the receiver has scanned them.
		if err := s.drain(ctx); err != nil {
			return 0, err
		}
		if err := s.postRead(-1); err != nil {
			return 0, err
		}
	}
	for s.reading {
		if err := s.await(ctx); err != nil {
			return 0, err
		}
	}
	free := 0
	for j, v := range s.view {
		switch v {
		case Empty:
			free++
		case HasData, Unavailable:
		default:
			s.stats.BadStatus++
			s.view[j] = Unavailable
		}
	}
	if free == 0 {
		s.stats.Idle++
	}
	return free, nil
}

// postRead posts the READ of the array. If behind is not negative, the WRITEs into that block
// follow the READ.
func (s *Sender) postRead(behind int) error {
	if err := s.ep.QP.PostSend(s.wrs[:1]...); err != nil {
		return s.broken(err)
	}
	s.used++
	s.signaled++
	s.reading, s.behind = true, behind
	s.stats.Syncs++
	return nil
}

// lookAhead starts to synchronize without waiting if no block is empty and the queues have space.
func (s *Sender) lookAhead() error {
	if s.reading || slices.Contains(s.view, Empty) || !s.fits(1, 1) {
		return nil
	}
	return s.postRead(-1)
}

// space waits until n work requests, the last of them signaled, fit into both queues. If nothing is
// outstanding there is nothing to wait for, and the post itself reports whether they fit.
func (s *Sender) space(ctx context.Context, n int) error {
	for s.err == nil && s.signaled > 0 && !s.fits(n, 1) {
		if err := s.await(ctx); err != nil {
			return err
		}
	}
	return s.err
}

// spinLook is the number of polls between two reads of the clock.
const spinLook = 16

// await waits for at least one completion and processes all that are there.
func (s *Sender) await(ctx context.Context) error {
	if n := s.ep.CQ.Poll(s.wcs[:]); n > 0 {
		return s.take(n)
	}
	if s.cfg.Spin > 0 {
		for until := time.Now().Add(s.cfg.Spin); ; {
			for range spinLook {
				if n := s.ep.CQ.Poll(s.wcs[:]); n > 0 {
					return s.take(n)
				}
			}
			if time.Now().After(until) {
				break
			}
		}
	}
	n, err := s.ep.CQ.Wait(ctx, s.wcs[:])
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return s.broken(err)
	}
	return s.take(n)
}

// take processes n completions: their send blocks are empty again, or the array has arrived.
func (s *Sender) take(n int) error {
	for i := range s.wcs[:n] {
		wc := &s.wcs[i]
		if wc.Status != roce.Success {
			return s.broken(endpoint.StatusError(wc))
		}
		s.signaled--
		if wc.ID == syncID {
			s.used--
			s.reading = false
			if s.behind >= 0 {
				s.view[s.behind], s.behind = HasData, -1
			}
			continue
		}
		s.used -= blockWRs
		s.own[wc.ID] = Empty
	}
	return nil
}

// broken records the first error together with the reason why the connection ended.
func (s *Sender) broken(err error) error {
	if s.err == nil {
		if why := s.conn.Err(); why != nil {
			err = fmt.Errorf("%w (%w)", err, why)
		}
		s.err = fmt.Errorf("%w: %w", ErrBroken, err)
		s.signalMoved()
	}
	return s.err
}
