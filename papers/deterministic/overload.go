package deterministic

import (
	"context"
	"time"
)

// The experiment "overload": three periodic streams need 1.6 times the link.
const (
	overloadTime     = time.Second
	overloadPeriod   = time.Second / 30
	overloadDeadline = 12 * time.Millisecond // of the high class: 1 MiB takes 9.1 ms
)

// overloadSizes are the messages of the streams of three, in bytes.
var overloadSizes = [3]int{4 << 20, 1 << 20, 1 << 20}

// overloaded is what the streams of low, medium and high priority got.
type overloaded struct {
	inTime [3]float64 // share of messages within the deadline of the high class
	late   time.Duration
}

// overload sends more than the link can take.
func overload(ctx context.Context, m method, seed uint64) (o overloaded, err error) {
	err = simulate(m, seed, func(n *network) error {
		streams, err := n.three(func(i int) streamConfig {
			return streamConfig{size: overloadSizes[i], queue: int(overloadTime / overloadPeriod),
				period: overloadPeriod}
		})
		if err != nil {
			return err
		}
		var good [3]int
		for i, s := range streams {
			s.arrived = func(sent, received int64) {
				took := time.Duration(received - sent)
				if took <= overloadDeadline {
					good[i]++
				}
				if i == high {
					o.late = max(o.late, took)
				}
			}
		}
		err = n.run(ctx, func() error { return n.periodic(streams, overloadTime) })
		for i := range good {
			o.inTime[i] = float64(good[i]) / float64(overloadTime/overloadPeriod)
		}
		return err
	})
	return o, err
}
