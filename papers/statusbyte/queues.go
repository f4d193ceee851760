package statusbyte

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// least are the smallest queues with which a lane works: blocks go through, none is held up by a NAK or lost.
type least struct {
	sendQP, sendCQ, recvQP, recvCQ int // capacity of both queues of the QP, and of all CQs, at each end
}

const (
	queueTrialBlocks = 300
	queueTrials      = 5 // how often queues have to work: with luck, ones that are too small do so once
	queueTrialTime   = 3 * time.Second
	queueSize        = 256
)

// errTogether: each queue was large enough while the others were ample, but not all of them are at once. How many are needed is a
// matter of timing, too.
var errTogether = errors.New("queues that each work do not work together")

// leastQueues finds them by trying, and tries again if they do not work together.
func (w *world) leastQueues(ctx context.Context, lane string, blocks int) (l least, err error) {
	for range tries {
		if l, err = w.searchQueues(ctx, lane, blocks); !errors.Is(err, errTogether) {
			break
		}
	}
	return l, err
}

// searchQueues tries each queue in turn, the others being ample.
func (w *world) searchQueues(ctx context.Context, lane string, blocks int) (l least, err error) {
	s := shape{blocks: blocks, size: queueSize}
	type queue struct {
		set func(s *shape, n int)
		sum *int
	}
	queues := []queue{
		{func(s *shape, n int) { s.sendSQ = n }, &l.sendQP}, {func(s *shape, n int) { s.sendSCQ = n }, &l.sendCQ},
	}
	if lane == laneWindow {
		queues = append(queues,
			queue{func(s *shape, n int) { s.sendRQ = n }, &l.sendQP}, queue{func(s *shape, n int) { s.sendRCQ = n }, &l.sendCQ},
			queue{func(s *shape, n int) { s.recvSQ = n }, &l.recvQP}, queue{func(s *shape, n int) { s.recvSCQ = n }, &l.recvCQ},
			queue{func(s *shape, n int) { s.recvRQ = n }, &l.recvQP}, queue{func(s *shape, n int) { s.recvRCQ = n }, &l.recvCQ})
	} else {
		l.recvCQ = 1 // the smallest that there is, which it has in all trials: a QP has to name one
	}
	together := s
	for _, q := range queues {
		n := 0
		for try := 1; try <= 2*blocks+1; try++ {
			t := s
			q.set(&t, try)
			ok, err := w.works(ctx, lane, t)
			if err != nil {
				return l, err
			}
			if ok {
				n = try
				break
			}
		}
		if n == 0 {
			return l, fmt.Errorf("%s: no queue of up to %d works", lane, 2*blocks+1)
		}
		*q.sum += n
		q.set(&together, n)
	}
	before := w.dev[1].Counters().Completions
	switch ok, err := w.works(ctx, lane, together); {
	case err != nil:
		return l, err
	case !ok:
		return l, fmt.Errorf("%s: %w: %+v", lane, errTogether, together)
	}
	// The status byte's receiver has a QP with one entry in each queue, the smallest that there is. It needs none of them
	// if all blocks went through and nothing that it might have posted has completed.
	if lane == laneStatus && w.dev[1].Counters().Completions != before {
		l.recvQP = 2
	}
	return l, nil
}

// works tries queues, time and again.
func (w *world) works(ctx context.Context, lane string, s shape) (ok bool, err error) {
	for range queueTrials {
		if ok, err = w.worksOnce(ctx, lane, s); !ok || err != nil {
			break
		}
	}
	return ok, err
}

// worksOnce tries queues: all blocks have to go through in time, without an RNR NAK.
func (w *world) worksOnce(ctx context.Context, lane string, s shape) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, queueTrialTime)
	defer cancel()
	before := w.naks()
	err := w.with(ctx, lane, s, release, func(p *pair) error {
		for range queueTrialBlocks {
			if err := p.s.send(ctx, 0, s.size); err != nil {
				return err
			}
		}
		if err := p.s.flush(ctx); err != nil {
			return err
		}
		return p.await(queueTrialBlocks)
	})
	if ctx.Err() != nil && context.Cause(ctx) != context.DeadlineExceeded {
		return false, context.Cause(ctx)
	}
	return err == nil && w.naks() == before, nil
}

// naks counts the RNR NAKs of both devices.
func (w *world) naks() (n uint64) {
	for _, d := range w.dev {
		n += d.Counters().SentRNR
	}
	return n
}
