package deterministic

import (
	"context"
	"math/rand/v2"
	"time"
)

// The sweep of P: messages of the high class with random phases, beside bulk traffic of the low
// class that can be preempted every P bytes.
const (
	sweepSize   = 64 << 10
	sweepPeriod = 10 * time.Millisecond
	sweepTime   = time.Second
	bulkSize    = 1 << 20
	bulkQueue   = 4
)

// sweepPoints are the values of P in bytes. The last one is the end of a message.
var sweepPoints = []int{pathMTU, 4 << 10, 16 << 10, 64 << 10, 256 << 10, bulkSize}

// interference returns the longest latency of the high class in seconds, and the goodput of the low
// one in Mb/s.
func interference(ctx context.Context, m method, seed uint64) (latency, goodput float64,
	err error) {
	var w worst
	rate := meter{size: bulkSize}
	err = simulate(m, seed, func(n *network) error {
		from, err := n.add(streamConfig{name: "low", size: bulkSize, queue: bulkQueue})
		if err != nil {
			return err
		}
		to, err := n.add(streamConfig{name: "high", priority: 7, size: sweepSize, queue: bulkQueue})
		if err != nil {
			return err
		}
		from.arrived, to.arrived = rate.arrived, w.arrived
		r := rand.New(rand.NewPCG(seed, 2))
		return n.run(ctx, func() error {
			start := n.now()
			if err := from.bulk(bulkQueue / 2); err != nil {
				return err
			}
			for k := range int64(sweepTime / sweepPeriod) {
				at := start + k*int64(sweepPeriod) + r.Int64N(int64(sweepPeriod/2))
				if err := n.sleepUntil(at); err != nil {
					return err
				}
				if err := to.send(); err != nil {
					return err
				}
			}
			return n.sleepUntil(start + int64(sweepTime))
		})
	})
	return w.d.Seconds(), rate.mbps(), err
}
