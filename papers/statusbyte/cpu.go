package statusbyte

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/gorxe/gorxe/papers/kit/paper"
)

// load is a fixed workload: blocks of a size at a rate that both transports carry with ease.
type load struct {
	size   int
	blocks int // a second
}

// loads span small blocks to large ones.
var loads = []load{{256, 4000}, {4 * kib, 4000}, {64 * kib, 1500}, {mib, 100}}

// senderCPU is the CPU time of the sending side under the same workload, in percent of a CPU, averaged over loads. It
// is the process's time less the receiving thread's. naps is how often the sending NIC's thread went to
// sleep for a block, to be woken again: what small blocks spend their time on.
func (w *world) senderCPU(ctx context.Context, lane string, blocks int, d time.Duration) (percent, naps float64, err error) {
	var percents []float64
	var sent uint64
	before := w.dev[0].Counters().Waits
	for _, l := range loads {
		p, n, err := w.loadCPU(ctx, lane, blocks, l, d/time.Duration(len(loads)))
		if err != nil {
			return 0, 0, err
		}
		percents = append(percents, p)
		sent += n
	}
	return paper.Mean(percents), float64(w.dev[0].Counters().Waits-before) / float64(sent), nil
}

func (w *world) loadCPU(ctx context.Context, lane string, blocks int, l load, d time.Duration) (percent float64, sent uint64, err error) {
	period := time.Second / time.Duration(l.blocks)
	err = w.with(ctx, lane, shape{blocks: blocks, size: l.size}, release, func(p *pair) error {
		cpu, recv, begin := paper.ProcessTime(), p.recvThread(), time.Now()
		for next := begin; time.Since(begin) < d; next = next.Add(period) {
			time.Sleep(time.Until(next))
			if err := p.s.send(ctx, 0, l.size); err != nil {
				return err
			}
			sent++
		}
		if err := p.s.flush(ctx); err != nil {
			return err
		}
		wall := time.Since(begin)
		percent = 100 * float64(paper.ProcessTime()-cpu-(p.recvThread()-recv)) / float64(wall)
		return p.await(sent)
	})
	return percent, sent, err
}

// recvThread is the CPU time that the receiving thread has used, by /proc/self/task/TID/schedstat; 0 where it cannot be read.
func (p *pair) recvThread() time.Duration {
	text, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/schedstat", p.tid.Load()))
	if err != nil {
		return 0
	}
	first, _, _ := bytes.Cut(text, []byte(" "))
	ns, _ := strconv.ParseInt(string(first), 10, 64) // the kernel writes a number
	return time.Duration(ns)
}
