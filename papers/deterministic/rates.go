package deterministic

import (
	"context"
	"slices"
	"time"
)

// The experiment "multi-rate": a camera at 30 Hz, whose frames go to a task at 30 Hz and to one at
// 100 Hz, beside bulk traffic.
const (
	frameSize = 640 * 480 * 3 / 2 // YUV 4:2:0
	ratesTime = 2 * time.Second
)

// ratesHz are the rates of the two tasks.
var ratesHz = [2]int{30, 100}

// period returns the period of a rate.
func period(hz int) time.Duration { return time.Second / time.Duration(hz) }

// multiRate returns the jitter of the frames' arrivals at each task: the latest one relative to its
// period minus the earliest one.
func multiRate(ctx context.Context, m method, seed uint64) (jitter [2]time.Duration, err error) {
	err = simulate(m, seed, func(n *network) error {
		other, err := n.add(streamConfig{name: "low", size: bulkSize, queue: bulkQueue})
		if err != nil {
			return err
		}
		var at [2][]int64
		var tasks [2]*stream
		for i, c := range []streamConfig{{name: "camera 30 Hz", priority: 5},
			{name: "camera 100 Hz", priority: 7}} {
			c.size, c.queue, c.period = frameSize, bulkQueue, period(ratesHz[i])
			if i > 0 {
				c.shares = tasks[0]
			}
			if tasks[i], err = n.add(c); err != nil {
				return err
			}
			tasks[i].arrived = func(_, received int64) { at[i] = append(at[i], received) }
		}
		err = n.run(ctx, func() error {
			if err := other.bulk(bulkQueue / 2); err != nil {
				return err
			}
			return n.periodic(tasks[:], ratesTime)
		})
		for i := range at {
			jitter[i] = spreadOf(at[i], period(ratesHz[i]))
		}
		return err
	})
	return jitter, err
}

// periodic lets streams send in their periods, all from now on.
func (n *network) periodic(streams []*stream, length time.Duration) error {
	start := n.now()
	next := make([]int64, len(streams)) // since start
	for {
		at := slices.Min(next)
		if at >= int64(length) {
			return n.sleepUntil(start + int64(length))
		}
		if err := n.sleepUntil(start + at); err != nil {
			return err
		}
		for i, s := range streams {
			if next[i] != at {
				continue
			}
			next[i] += int64(s.conf.period)
			if err := s.tick(); err != nil {
				return err
			}
		}
	}
}

// spreadOf returns by how much arrivals deviate from their period.
func spreadOf(at []int64, period time.Duration) time.Duration {
	var off []int64
	for k, t := range at {
		off = append(off, t-int64(k)*int64(period))
	}
	if len(off) == 0 {
		return 0
	}
	return time.Duration(slices.Max(off) - slices.Min(off))
}
