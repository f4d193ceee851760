package statusbyte

import (
	"context"
	"fmt"
	"time"

	"github.com/gorxe/gorxe/papers/kit"
)

// load is a fixed workload: blocks of a size at a rate that both transports reach easily.
type load struct {
	size   int
	blocks int // per second
}

// loads range from small to large blocks.
var loads = []load{{256, 4000}, {4 * kib, 4000}, {64 * kib, 1500}, {mib, 100}}

// senderCPU returns the CPU time of the sending side in percent of a CPU, averaged over loads. It
// is the time of the process without the receiving thread. sleeps is how often the thread of the
// sending device went to sleep per block.
func (d *devices) senderCPU(
	ctx context.Context, transport string, t time.Duration,
) (percent, sleeps float64, err error) {
	var percents []float64
	var sent uint64
	before := d.Dev[0].Counters().Waits
	for _, l := range loads {
		p, n, err := d.loadCPU(ctx, transport, l, t/time.Duration(len(loads)))
		if err != nil {
			return 0, 0, err
		}
		percents = append(percents, p)
		sent += n
	}
	sleeps = float64(d.Dev[0].Counters().Waits-before) / float64(sent)
	return kit.Mean(percents), sleeps, nil
}

func (d *devices) loadCPU(
	ctx context.Context, transport string, l load, t time.Duration,
) (percent float64, sent uint64, err error) {
	period := time.Second / time.Duration(l.blocks)
	s := shape{blocks: blocks, size: l.size}
	err = d.with(ctx, transport, s, releaseAll, func(p *pair) error {
		cpu, recv, begin := kit.ProcessTime(), p.recvThread(), time.Now()
		for next := begin; time.Since(begin) < t; next = next.Add(period) {
			time.Sleep(time.Until(next))
			if err := p.s.send(ctx, 0, l.size); err != nil {
				return err
			}
			sent++
		}
		if err := p.s.Flush(ctx); err != nil {
			return err
		}
		elapsed := time.Since(begin)
		percent = 100 * float64(kit.ProcessTime()-cpu-(p.recvThread()-recv)) / float64(elapsed)
		return p.await(sent)
	})
	return percent, sent, err
}

// recvThread returns the CPU time of the receiving thread, 0 if it is unknown.
func (p *pair) recvThread() time.Duration {
	return kit.SchedTime(fmt.Sprintf("/proc/self/task/%d/schedstat", p.tid.Load()))
}
