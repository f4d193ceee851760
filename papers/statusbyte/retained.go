package statusbyte

import (
	"context"
	"time"

	"github.com/gorxe/gorxe/papers/kit/paper"
)

// A block is retained from a third of the run to two thirds of it: with the paper's times from 100 to 200 ms.
const (
	retainFrom = 100 * time.Millisecond
	retainTo   = 200 * time.Millisecond
	retainEnd  = 300 * time.Millisecond
	retainBin  = 5 * time.Millisecond
	retainSize = 64 * kib
)

// retained is the throughput, in 10^6 bytes a second, of each retainBin, while the third block is retained from 100 to 200 ms.
func (w *world) retained(ctx context.Context, lane string, blocks int) ([]float64, error) {
	var begin int64
	var free func() error
	bins := make([]float64, int(retainEnd/retainBin))
	on := func(r receiver, i uint64) error {
		at := now()
		if begin == 0 {
			begin = at
		}
		since := time.Duration(at - begin)
		if bin := int(since / retainBin); bin < len(bins) {
			bins[bin] += float64(r.bytes()) / retainBin.Seconds() / 1e6
		}
		if since >= retainFrom && since < retainTo && free == nil && i%uint64(blocks) == uint64(blocks-1) {
			free = r.keep()
			return nil
		}
		return r.release()
	}
	// What is retained is released in time even if no further block arrives.
	idle := func() error {
		if free != nil && time.Duration(now()-begin) >= retainTo {
			f := free
			free = func() error { return nil }
			return f()
		}
		return nil
	}
	err := w.withIdle(ctx, lane, shape{blocks: blocks, size: retainSize}, on, idle, func(p *pair) error {
		sent := uint64(0)
		for p.arrived.Load() == 0 || time.Duration(now()-p.first.Load()) < retainEnd {
			if err := p.s.send(ctx, 0, retainSize); err != nil {
				return err
			}
			sent++
		}
		if err := p.s.flush(ctx); err != nil {
			return err
		}
		return p.await(sent)
	})
	return bins, err
}

// kept is the share of the throughput that is left while the block is retained, in percent.
func kept(bins []float64) float64 {
	from, to := int(retainFrom/retainBin), int(retainTo/retainBin)
	// The first and the last bin of each part hold its edges.
	before, during := paper.Mean(bins[2:from-1]), paper.Mean(bins[from+1:to-1])
	if before == 0 {
		return 0
	}
	return 100 * during / before
}
