package statusbyte

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/internal/ends"
)

const (
	// blockWRs is how many work requests a block takes.
	blockWRs = 2
	// earlyFrom is how many bytes of data in a block take longer to build than a READ to be answered.
	earlyFrom = ends.TurnFrom
)

// send puts the header before block i's data, and posts the two WRITEs once a receive block is empty. The caller has
// the turn.
func (s *Sender) send(ctx context.Context, i int, h *header) error {
	j, err := s.target(ctx)
	if err != nil {
		return err
	}
	if err := s.room(ctx, blockWRs); err != nil {
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
		s.end.Dev.Progress() // with Manual progress: it leaves before the data is built
	}
	if err := s.end.QP.PostSend(s.wrs[1:]...); err != nil {
		return s.broken(err)
	}
	s.used += blockWRs
	s.signaled++
	if !early { // else the view is the NIC's
		s.view[j] = HasData
	}
	s.sendAt = (j + 1) % len(s.view)
	s.packets[h.device]++
	s.stats.Packets++
	s.stats.Bytes += uint64(h.length)
	return nil
}

// early tells whether the READ is to go out before the WRITEs into block j. It is the READ that would come next anyway, since no other
// block is empty; in front of them, and in a batch of frames of its own, it is answered while their data is built and sent, which takes a
// large block. What it can find are the blocks before this one.
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

// fits tells whether work requests, so many of them signalled, find room in both queues at once.
func (s *Sender) fits(wrs, signaled int) bool {
	return s.used+wrs <= s.cfg.SendDepth && s.signaled+signaled <= s.cfg.CQDepth
}

// target finds a receive block that is empty. Blocks with data, and those that the receiver keeps, are passed over. Only if all
// are such does it synchronise, until one is empty.
func (s *Sender) target(ctx context.Context) (int, error) {
	for {
		if s.err != nil {
			return 0, s.err
		}
		for k := range s.view {
			if s.reading {
				break // a READ that somebody gave up waiting for still writes to the array
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

// rest sleeps a little after a READ that found nothing: the first time not at all, then longer each time.
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

// sync fetches the receiver's array, and returns how many blocks are empty. The READ is executed behind all WRITEs
// posted before it (IBA 9.5), so it never shows a block as empty that is still to be written; of the one whose WRITEs follow it, it
// is not believed. Nothing else is posted until it is there.
func (s *Sender) sync(ctx context.Context) (int, error) {
	if s.err != nil {
		return 0, s.err
	}
	if !s.reading {
		// A READ on the heels of the WRITEs would be answered before the receiver has looked at them.
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

// postRead posts the READ of the array, in front of the WRITEs into block behind if that is not negative.
func (s *Sender) postRead(behind int) error {
	if err := s.end.QP.PostSend(s.wrs[:1]...); err != nil {
		return s.broken(err)
	}
	s.used++
	s.signaled++
	s.reading, s.behind = true, behind
	s.stats.Syncs++
	return nil
}

// lookAhead begins to synchronise, without waiting, if nothing is empty any more and the queues have room.
func (s *Sender) lookAhead() error {
	if s.reading || slices.Contains(s.view, Empty) || !s.fits(1, 1) {
		return nil
	}
	return s.postRead(-1)
}

// room waits until n work requests, the last one signalled, find room in both queues. If nothing is under way it has
// none to wait for, and the post itself says whether they fit.
func (s *Sender) room(ctx context.Context, n int) error {
	for s.err == nil && s.signaled > 0 && !s.fits(n, 1) {
		if err := s.await(ctx); err != nil {
			return err
		}
	}
	return s.err
}

// spinLook is how many polls go by between two looks at the clock.
const spinLook = 16

// await waits for at least one completion, and takes in what came.
func (s *Sender) await(ctx context.Context) error {
	if n := s.end.CQ.Poll(s.wcs[:]); n > 0 {
		return s.take(n)
	}
	if s.cfg.Spin > 0 {
		for until := time.Now().Add(s.cfg.Spin); ; {
			for range spinLook {
				if n := s.end.CQ.Poll(s.wcs[:]); n > 0 {
					return s.take(n)
				}
			}
			if time.Now().After(until) {
				break
			}
		}
	}
	n, err := s.end.CQ.Wait(ctx, s.wcs[:])
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return s.broken(err)
	}
	return s.take(n)
}

// take books n completions: send blocks are empty again, the array is there.
func (s *Sender) take(n int) error {
	for i := range s.wcs[:n] {
		wc := &s.wcs[i]
		if wc.Status != roce.Success {
			return s.broken(ends.Failed(wc))
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

// broken remembers what went wrong first. What the connection says of its end is part of it.
func (s *Sender) broken(err error) error {
	if s.err == nil {
		if why := s.conn.Err(); why != nil {
			err = fmt.Errorf("%w (%w)", err, why)
		}
		s.err = fmt.Errorf("%w: %w", ErrBroken, err)
		s.stir()
	}
	return s.err
}
