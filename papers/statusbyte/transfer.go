package statusbyte

import (
	"context"
	"errors"
	"time"

	"github.com/gorxe/gorxe/internal/stat"
)

const (
	// latencySamples is how many blocks are timed in a measurement, as in the paper; fewer if the time is up.
	latencySamples = 100
	latencyWarmup  = 10
)

// latency is the median time, in us, from the call that sends a block to its hand-over, one block at a time. The sender knows of an
// empty block beforehand.
func (w *world) latency(ctx context.Context, lane string, blocks, size int, limit time.Duration) (float64, error) {
	var us []float64
	err := w.with(ctx, lane, shape{blocks: blocks, size: size}, release, func(p *pair) error {
		until := now() + int64(limit)
		for i := uint64(0); i < latencyWarmup+latencySamples; i++ {
			if i > latencyWarmup && now() > until {
				break
			}
			if err := p.s.sync(ctx); err != nil {
				return err
			}
			begin := now()
			if err := p.s.send(ctx, 0, size); err != nil {
				return err
			}
			if err := p.await(i + 1); err != nil {
				return err
			}
			if i >= latencyWarmup {
				us = append(us, micros(p.last.Load()-begin))
			}
		}
		return nil
	})
	return stat.Median(us), err
}

// errNothing: no block arrived in time.
var errNothing = errors.New("too few blocks arrived: let other programs on this machine finish, or give it more time by --duration")

// throughput sends blocks as fast as they go: 10^6 bytes a second, and how many frames were on the wire for a block. The receiver
// releases a block so long after its hand-over.
func (w *world) throughput(ctx context.Context, lane string, s shape, d, ack time.Duration) (rate, frames float64, err error) {
	var first, last int64
	var counted uint64
	warm := int64(d / 4)
	on := func(r receiver, i uint64) error {
		at := now()
		switch {
		case i == 0:
			warm += at
		case at < warm:
		case first == 0:
			first = at // starts the clock, and does not count
		default:
			counted++
			last = at
		}
		for end := at + int64(ack); ack > 0 && now() < end; {
			w.dev[1].Progress()
		}
		return r.release()
	}
	err = w.with(ctx, lane, s, on, func(p *pair) error {
		sent, before := uint64(0), w.frames()
		for end := now() + int64(d) + int64(d/4); now() < end; {
			if err := p.s.post(ctx, s.size); err != nil {
				return err
			}
			sent++
		}
		if err := p.s.flush(ctx); err != nil {
			return err
		}
		err := p.await(sent)
		frames = float64(w.frames()-before) / float64(sent)
		return err
	})
	if err == nil && (counted == 0 || last <= first) {
		err = errNothing
	}
	if err != nil {
		return 0, 0, err
	}
	return float64(counted) * float64(s.size) / (float64(last-first) / 1e9) / 1e6, frames, nil
}

// frames counts what both devices have sent.
func (w *world) frames() uint64 { return w.dev[0].Counters().TxFrames + w.dev[1].Counters().TxFrames }
