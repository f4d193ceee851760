package statusbyte

import (
	"context"
	"slices"
)

const (
	syncSamples = 500  // measured synchronizations
	syncWarmup  = 50   // synchronizations before them
	warmReads   = 8192 // more than the buffers at one end of the link in memory
)

// syncTimes measures the synchronization latency with a number of blocks in microseconds, in the
// order of time.
//
// For the status byte it is the time for which the READ of the array blocks the sending thread.
// For the sliding window it is, as in the paper, the time from the arrival of a block until the
// receiver is ready for the next one: the SEND of the ACK is posted, transmitted, acknowledged
// and completed. posted is the part of it until the SEND is posted.
func (d *devices) syncTimes(
	ctx context.Context, transport string, blocks int,
) (us, posted []float64, err error) {
	const size = 64
	s := shape{blocks: blocks, size: size}
	if transport == statusByte {
		err = d.with(ctx, transport, s, releaseAll, func(p *pair) error {
			for range syncWarmup + syncSamples {
				begin := now()
				if err := p.s.sync(ctx); err != nil {
					return err
				}
				us = append(us, micros(now()-begin))
			}
			return nil
		})
		return afterWarmup(us), nil, err
	}
	h := handler{onBlock: func(r receiver, _ uint64) error {
		begin := now()
		if err := r.release(); err != nil {
			return err
		}
		post := now()
		if err := r.Drain(ctx); err != nil {
			return err
		}
		us = append(us, micros(now()-begin))
		posted = append(posted, micros(post-begin))
		return nil
	}}
	err = d.with(ctx, transport, s, h, func(p *pair) error {
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
	return afterWarmup(us), afterWarmup(posted), err
}

// warm uses every buffer of both sides once. The buffers of the link in memory are fresh memory:
// the page faults of their first use would burden the first measurement.
func (d *devices) warm(ctx context.Context) error {
	s := shape{blocks: blocks, size: headlineSize}
	return d.with(ctx, statusByte, s, releaseAll, func(p *pair) error {
		for range warmReads {
			if err := p.s.sync(ctx); err != nil {
				return err
			}
		}
		return nil
	})
}

func afterWarmup(v []float64) []float64 { return v[min(syncWarmup, len(v)):] }

func micros(ns int64) float64 { return float64(ns) / 1e3 }

// percentile returns the value below which the given share of v lies, 0 if v is empty.
func percentile(v []float64, share float64) float64 {
	if len(v) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(v))
	return s[min(len(s)-1, int(share*float64(len(s))))]
}
