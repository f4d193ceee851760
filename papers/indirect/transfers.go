package indirect

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/gorxe/gorxe/transport/indirect"
)

// serve lets the responder work until stop is set.
func (s *side) serve(stop *atomic.Bool) error {
	var evs [4]indirect.Event
	for !stop.Load() {
		s.gaps.look()
		for _, ev := range evs[:s.ep.Poll(evs[:])] {
			if ev.Kind == indirect.Down {
				return fmt.Errorf("responder: %w", ev.Err)
			}
		}
	}
	return nil
}

// transfers are the transfers of a trial as the initiator sees them.
type transfers struct {
	*side
	o        *outcome
	now      func() int64 // ns
	posted   int64        // time of the latest Post
	sent     bool         // the data of the latest transfer has been acknowledged
	released bool         // a transfer has been released
	busy     [entries]bool
	done     int
	evs      [8]indirect.Event
}

// transfer makes the transfers of a trial. The next one begins when the data of the previous one
// has been acknowledged. transfer returns when all have been released. now returns the time in
// nanoseconds; step lets time pass.
func (s *side) transfer(t *trial, o *outcome, now func() int64, step func() error) error {
	b, start := s.mr.Bytes(), now()
	r := transfers{side: s, o: o, now: now}
	for n := uint64(1); n <= uint64(t.Transfers); n++ {
		off := int(n%entries) * t.Size
		for r.busy[n%entries] { // another transfer still uses this memory
			if err := r.waitFor(&r.released, step); err != nil {
				return err
			}
		}
		binary.LittleEndian.PutUint64(b[off:], n)
		binary.LittleEndian.PutUint64(b[off+t.Size-stampLen:], n)
		r.posted, r.busy[n%entries] = now(), true
		err := s.conn.Post(&indirect.Transfer{
			Kind: indirect.Write, MR: s.mr, Off: off, Len: t.Size, DBA: uint64(off), Cookie: n,
		})
		if err != nil {
			return err
		}
		if err := r.waitFor(&r.sent, step); err != nil {
			return fmt.Errorf("transfer %d of %d: %w", n, t.Transfers, err)
		}
	}
	for r.done < t.Transfers {
		if err := r.waitFor(&r.released, step); err != nil {
			return err
		}
	}
	o.total = time.Duration(now() - start)
	return nil
}

// waitFor steps until *event is true, and clears it.
func (r *transfers) waitFor(event *bool, step func() error) error {
	for !*event {
		if err := r.poll(); err != nil {
			return err
		}
		if !*event {
			if err := step(); err != nil {
				return err
			}
		}
	}
	*event = false
	return nil
}

func (r *transfers) poll() error {
	for _, ev := range r.evs[:r.ep.Poll(r.evs[:])] {
		switch {
		case ev.Kind == indirect.Down:
			return ev.Err
		case ev.Kind == indirect.Acked:
			r.o.waited += time.Duration(r.now() - r.posted)
		case ev.Kind == indirect.Sent:
			r.sent = true
		case ev.Status != indirect.StatusOK:
			return errors.Join(fmt.Errorf("%w: %v", indirect.ErrTransfer, ev.Status), r.conn.Err())
		default:
			r.done++
			r.released, r.busy[ev.Cookie%entries] = true, false
		}
	}
	return nil
}

// contextEvery is the number of steps between two checks of the context.
const contextEvery = 4096

// spinner returns the step of the initiator in real time.
func (s *side) spinner(ctx context.Context) func() error {
	n := 0
	return func() error {
		s.gaps.look()
		if n++; n%contextEvery == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return nil
	}
}
