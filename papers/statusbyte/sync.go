package statusbyte

import (
	"context"
	"slices"
)

// syncSamples is how often the synchronisation is timed in a measurement, after some that do not count.
const (
	syncSamples = 500
	syncWarmup  = 50
)

// syncTimes measures the synchronisation latency with a number of blocks, in us, in order of time.
//
// For the status byte it is the time that the READ of the array blocks the sending thread. For the sliding window it is, as in the paper, the
// time from a block's hand-over at the receiver until the receiver is ready for the next one: the ACK's SEND is posted,
// carried, acknowledged and completed.
func (w *world) syncTimes(ctx context.Context, lane string, blocks int) (us []float64, posted []float64, err error) {
	const size = 64
	s := shape{blocks: blocks, size: size}
	if lane == laneStatus {
		err = w.with(ctx, lane, s, release, func(p *pair) error {
			for range syncWarmup + syncSamples {
				begin := now()
				if err := p.s.sync(ctx); err != nil {
					return err
				}
				us = append(us, micros(now()-begin))
			}
			return nil
		})
		return cut(us), nil, err
	}
	on := func(r receiver, _ uint64) error {
		begin := now()
		if err := r.release(); err != nil {
			return err
		}
		post := now()
		if err := r.drain(ctx); err != nil {
			return err
		}
		us = append(us, micros(now()-begin))
		posted = append(posted, micros(post-begin))
		return nil
	}
	err = w.with(ctx, lane, s, on, func(p *pair) error {
		for i := range uint64(syncWarmup + syncSamples) {
			if err := p.s.send(ctx, 0, size); err != nil {
				return err
			}
			if err := p.await(i + 1); err != nil {
				return err
			}
		}
		return nil
	})
	return cut(us), cut(posted), err
}

// warmReads are more than a link in memory has buffers at one end.
const warmReads = 8192

// warm has every buffer of both ends used once. Those of a link in memory are fresh memory, whose first use costs a page fault (some 25 us,
// every 17 frames): whoever is measured first would pay for it.
func (w *world) warm(ctx context.Context) error {
	return w.with(ctx, laneStatus, shape{blocks: blocks, size: headlineSize}, release, func(p *pair) error {
		for range warmReads {
			if err := p.s.sync(ctx); err != nil {
				return err
			}
		}
		return nil
	})
}

// cut leaves the warm-up out.
func cut(v []float64) []float64 { return v[min(syncWarmup, len(v)):] }

func micros(ns int64) float64 { return float64(ns) / 1e3 }

// percentile is the value below which a share of v lies.
func percentile(v []float64, share float64) float64 {
	if len(v) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(v))
	return s[min(len(s)-1, int(share*float64(len(s))))]
}
