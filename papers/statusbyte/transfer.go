package statusbyte

import (
	"context"
	"time"

	"github.com/gorxe/gorxe/internal/stat"
	"github.com/gorxe/gorxe/papers/kit"
)

const (
	latencySamples = 100 // measured blocks, as in the paper, or fewer if the time is up
	latencyWarmup  = 10  // blocks before them
)

// latency returns the median time in microseconds from the call that sends a block until its
// arrival, one block at a time. The sender knows of an empty block beforehand.
func (d *devices) latency(
	ctx context.Context, transport string, size int, limit time.Duration,
) (float64, error) {
	var us []float64
	s := shape{blocks: blocks, size: size}
	err := d.with(ctx, transport, s, releaseAll, func(p *pair) error {
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

// throughput sends blocks of size bytes as fast as possible for the time t. It returns the rate
// in 10^6 bytes a second and the number of packets per block. The receiver releases each block
// after the delay.
func (d *devices) throughput(
	ctx context.Context, transport string, size int, t, delay time.Duration,
) (rate, frames float64, err error) {
	var first, last int64
	var counted uint64
	warm := int64(t / 4)
	h := handler{onBlock: func(r receiver, i uint64) error {
		at := now()
		switch {
		case i == 0:
			warm += at
		case at < warm:
		case first == 0:
			first = at // starts the clock and does not count
		default:
			counted++
			last = at
		}
		for end := at + int64(delay); delay > 0 && now() < end; {
			d.Dev[1].Progress()
		}
		return r.release()
	}}
	err = d.with(ctx, transport, shape{blocks: blocks, size: size}, h, func(p *pair) error {
		sent, before := uint64(0), d.frames()
		for end := now() + int64(t) + int64(t/4); now() < end; {
			if err := p.s.post(ctx, size); err != nil {
				return err
			}
			sent++
		}
		err := p.finish(ctx, sent)
		frames = float64(d.frames()-before) / float64(sent)
		return err
	})
	if err == nil && (counted == 0 || last <= first) {
		err = kit.ErrIdle
	}
	if err != nil {
		return 0, 0, err
	}
	return float64(counted) * float64(size) / (float64(last-first) / 1e9) / 1e6, frames, nil
}
