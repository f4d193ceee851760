package deterministic

import (
	"context"
	"time"
)

// The distributed application of the paper: two neural networks on two hosts, 100 ms of computation
// together, and the output of the first one.
const (
	yoloSize    = 564 << 20 / 100 // 5.64 MB
	yoloCompute = 50 * time.Millisecond
	yoloRuns    = 10
)

// yolo returns the longest time of yoloRuns from an image to its objects, in seconds: alone, or
// beside bulk traffic.
func yolo(ctx context.Context, m method, seed uint64, loaded bool) (seconds float64, err error) {
	var w worst
	err = simulate(m, seed, func(n *network) error {
		other, err := n.add(streamConfig{name: "low", size: bulkSize, queue: bulkQueue})
		if err != nil {
			return err
		}
		net, err := n.add(streamConfig{name: "yolo", priority: 7, size: yoloSize, queue: 1})
		if err != nil {
			return err
		}
		net.arrived = w.arrived
		return n.run(ctx, func() error {
			if loaded {
				if err := other.bulk(bulkQueue / 2); err != nil {
					return err
				}
			}
			for run := range yoloRuns {
				if err := n.bed.Sim.Sleep(yoloCompute); err != nil { // the first network
					return err
				}
				if err := net.send(); err != nil {
					return err
				}
				if err := n.until(ctx, func() bool { return net.count > run }); err != nil {
					return err
				}
				if err := n.bed.Sim.Sleep(yoloCompute); err != nil { // the second one
					return err
				}
			}
			return nil
		})
	})
	return (w.d + 2*yoloCompute).Seconds(), err
}
