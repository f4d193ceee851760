package deterministic

import (
	"context"
	"time"
)

// The experiment "loss": messages of three priorities at the same time, one packet of which is
// lost.
const lossSize = 256 << 10

// lossAt are the packets of a message that are lost.
var lossAt = []struct {
	name   string
	packet int
}{{"first", 0}, {"middle", lossSize / pathMTU / 2}, {"last", lossSize/pathMTU - 1}}

// lossCost is by how much a lost packet delays the messages of low, medium and high priority.
type lossCost [3]time.Duration

// losses returns the cost of each lost packet, by its position and the priority of its message.
func losses(ctx context.Context, m method, seed uint64) (cost [][3]lossCost, err error) {
	cost = make([][3]lossCost, len(lossAt))
	err = simulate(m, seed, func(n *network) error {
		streams, err := n.three(func(int) streamConfig {
			return streamConfig{size: lossSize, queue: 1}
		})
		if err != nil {
			return err
		}
		var took lossCost
		for i, s := range streams {
			s.arrived = func(sent, received int64) { took[i] = time.Duration(received - sent) }
		}
		w := newWire(n)
		return n.run(ctx, func() error {
			if err := w.learn(ctx, streams); err != nil {
				return err
			}
			goal := 2
			if err := n.once(ctx, streams, phases{}, goal); err != nil {
				return err
			}
			without := took
			for k, at := range lossAt {
				for i := range streams {
					w.loses, w.skip = i, at.packet
					goal++
					if err := n.once(ctx, streams, phases{}, goal); err != nil {
						return err
					}
					for j := range took {
						cost[k][i][j] = took[j] - without[j]
					}
				}
			}
			return nil
		})
	})
	return cost, err
}
