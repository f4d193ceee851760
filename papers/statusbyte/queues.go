package statusbyte

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// minQueues are the smallest queues with which a transport works: all blocks arrive, and none is
// delayed by an RNR NAK. Each number is the sum of the capacities of both queues of a QP, or of all
// CQs, of a side.
type minQueues struct{ sendQP, sendCQ, recvQP, recvCQ int }

const (
	queueTrialBlocks = 300
	queueTrials      = 5 // queues must work each time: too small ones may work once by chance
	queueTrialTime   = 3 * time.Second
	queueSize        = 256
)

// errTogether means that each queue was large enough while the others were ample, but that they
// do not work together. Which sizes work depends on timing as well.
var errTogether = errors.New("queues that work one by one do not work together")

// minQueues finds the smallest queues by trying. It repeats the search if they do not work
// together.
func (d *devices) minQueues(ctx context.Context, transport string) (m minQueues, err error) {
	for range maxTries {
		if m, err = d.searchQueues(ctx, transport); !errors.Is(err, errTogether) {
			break
		}
	}
	return m, err
}

// searchQueues finds the smallest size of each queue while the others are ample.
func (d *devices) searchQueues(ctx context.Context, transport string) (m minQueues, err error) {
	s := shape{blocks: blocks, size: queueSize}
	together := s
	type queue struct {
		size func(s *shape) *int
		sum  *int
	}
	queues := []queue{
		{func(s *shape) *int { return &s.sendSQ }, &m.sendQP},
		{func(s *shape) *int { return &s.sendSCQ }, &m.sendCQ},
	}
	if transport == slidingWindow {
		queues = append(queues,
			queue{func(s *shape) *int { return &s.sendRQ }, &m.sendQP},
			queue{func(s *shape) *int { return &s.sendRCQ }, &m.sendCQ},
			queue{func(s *shape) *int { return &s.recvSQ }, &m.recvQP},
			queue{func(s *shape) *int { return &s.recvSCQ }, &m.recvCQ},
			queue{func(s *shape) *int { return &s.recvRQ }, &m.recvQP},
			queue{func(s *shape) *int { return &s.recvRCQ }, &m.recvCQ})
	} else {
		m.recvCQ = 1 // the smallest possible one, which every trial uses: a QP needs a CQ
	}
	const largest = 2*blocks + 1
	for _, q := range queues {
		n := 0
		for try := 1; try <= largest && n == 0; try++ {
			t := s
			*q.size(&t) = try
			ok, err := d.works(ctx, transport, t)
			if err != nil {
				return m, err
			}
			if ok {
				n = try
			}
		}
		if n == 0 {
			return m, fmt.Errorf("%s: a queue of %d entries does not work", transport, largest)
		}
		*q.sum += n
		*q.size(&together) = n
	}
	before := d.Dev[1].Counters().Completions
	switch ok, err := d.works(ctx, transport, together); {
	case err != nil:
		return m, err
	case !ok:
		return m, fmt.Errorf("%s: %w: %+v", transport, errTogether, together)
	}
	// The queues of the status byte's receiver have one entry each, the smallest possible number.
	// It needs none of them if all blocks arrived without a completion at the receiver.
	if transport == statusByte && d.Dev[1].Counters().Completions != before {
		m.recvQP = 2
	}
	return m, nil
}

// works reports whether a connection works queueTrials times.
func (d *devices) works(ctx context.Context, transport string, s shape) (ok bool, err error) {
	for range queueTrials {
		if ok, err = d.worksOnce(ctx, transport, s); !ok || err != nil {
			break
		}
	}
	return ok, err
}

// worksOnce reports whether all blocks arrive in time, without an RNR NAK.
func (d *devices) worksOnce(ctx context.Context, transport string, s shape) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, queueTrialTime)
	defer cancel()
	before := d.naks()
	err := d.with(ctx, transport, s, releaseAll, func(p *pair) error {
		for range queueTrialBlocks {
			if err := p.s.send(ctx, 0, s.size); err != nil {
				return err
			}
		}
		return p.finish(ctx, queueTrialBlocks)
	})
	if ctx.Err() != nil && !errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
		return false, context.Cause(ctx)
	}
	return err == nil && d.naks() == before, nil
}
