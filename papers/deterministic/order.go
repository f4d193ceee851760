package deterministic

import (
	"context"
	"math/rand/v2"
)

// The experiment "packet order": three tasks send 4 packets each in turn. The first 100 packets of
// each of 100 runs count.
const (
	orderTasks   = 3
	orderPackets = 4
	orderCounted = 100
	orderRuns    = 100
	// orderSends is the number of messages of a run.
	orderSends = (orderCounted + orderPackets - 1) / orderPackets
	// orderGroup is the mean number of messages that the tasks post at the same time, which is two
	// turns of all tasks. The groups arrive twice as fast as the link sends them.
	orderGroup = 6
)

// packetOrder returns the share of the packets of the first task that are on the link where the
// order of posting puts them. The tasks post messages faster than the link sends them.
func packetOrder(ctx context.Context, m method, seed uint64) (share float64, err error) {
	err = simulate(m, seed, func(n *network) error {
		var tasks []*stream
		for i := range orderTasks {
			s, err := n.add(streamConfig{name: string(rune('a' + i)), queue: orderSends,
				size: orderPackets * pathMTU})
			if err != nil {
				return err
			}
			tasks = append(tasks, s)
		}
		w := newWire(n)
		r := rand.New(rand.NewPCG(seed, 1))
		inOrder, all := 0, 0
		err := n.run(ctx, func() error {
			if err := w.learn(ctx, tasks); err != nil {
				return err
			}
			for range orderRuns {
				w.order = w.order[:0]
				if err := n.inTurn(ctx, tasks, r); err != nil {
					return err
				}
				for i, task := range w.order[:orderCounted] {
					if task != 0 {
						continue
					}
					all++
					if i/orderPackets%orderTasks == 0 {
						inOrder++
					}
				}
			}
			return nil
		})
		share = float64(inOrder) / float64(all)
		return err
	})
	return share, err
}

// inTurn sends messages of the streams in turn, in groups, and waits until they have arrived.
func (n *network) inTurn(ctx context.Context, streams []*stream, r *rand.Rand) error {
	goal := n.count() + orderSends
	for i := range orderSends {
		if r.IntN(orderGroup) == 0 {
			gap := orderGroup * transmission(orderPackets*pathMTU) / 2
			if err := n.bed.Sim.Sleep(gap); err != nil {
				return err
			}
		}
		if err := streams[i%len(streams)].send(); err != nil {
			return err
		}
	}
	if err := n.until(ctx, func() bool { return n.count() >= goal }); err != nil {
		return err
	}
	return n.bed.Sim.Sleep(pause)
}
