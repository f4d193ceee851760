package statusbyte

import (
	"context"
	"time"

	"github.com/gorxe/gorxe/papers/kit"
)

// A block is retained during the second third of the run, from 100 to 200 ms as in the paper.
const (
	retainFrom = 100 * time.Millisecond
	retainTo   = 200 * time.Millisecond
	retainEnd  = 300 * time.Millisecond
	retainBin  = 5 * time.Millisecond
	retainSize = 64 * kib
)

// retained returns the throughput of each retainBin in 10^6 bytes a second while the receiver
// retains the third block from retainFrom to retainTo.
func (d *devices) retained(ctx context.Context, transport string) ([]float64, error) {
	var begin int64
	var free func() error // releases the retained block; nil before it is retained
	bins := make([]float64, int(retainEnd/retainBin))
	h := handler{
		onBlock: func(r receiver, i uint64) error {
			at := now()
			if begin == 0 {
				begin = at
			}
			since := time.Duration(at - begin)
			if bin := int(since / retainBin); bin < len(bins) {
				bins[bin] += float64(r.bytes()) / retainBin.Seconds() / 1e6
			}
			if since >= retainFrom && since < retainTo && free == nil && i%blocks == blocks-1 {
				free = r.retain()
				return nil
			}
			return r.release()
		},
		// The block is released in time even if no other block arrives.
		onIdle: func() error {
			if free != nil && time.Duration(now()-begin) >= retainTo {
				f := free
				free = func() error { return nil }
				return f()
			}
			return nil
		},
	}
	err := d.with(ctx, transport, shape{blocks: blocks, size: retainSize}, h, func(p *pair) error {
		sent := uint64(0)
		for p.arrived.Load() == 0 || time.Duration(now()-p.first.Load()) < retainEnd {
			if err := p.s.send(ctx, 0, retainSize); err != nil {
				return err
			}
			sent++
		}
		return p.finish(ctx, sent)
	})
	return bins, err
}

// remaining returns the throughput while the block is retained in percent of that before.
func remaining(bins []float64) float64 {
	from, to := int(retainFrom/retainBin), int(retainTo/retainBin)
	// The bins at the edges belong to both parts.
	before, during := kit.Mean(bins[2:from-1]), kit.Mean(bins[from+1:to-1])
	if before == 0 {
		return 0
	}
	return 100 * during / before
}
