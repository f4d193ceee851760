package perf

import (
	"context"
	"fmt"
	"time"

	"github.com/gorxe/gorxe/roce"
)

const (
	peakInterval = 10 * time.Millisecond // shortest interval that counts for the peak
	peakBatches  = 8                     // batches of each queue pair that such an interval needs
	batchBytes   = 1 << 20               // posted at a time, unless one message is larger
	maxSamples   = 1 << 14               // per run; what follows counts as one interval
)

// BandwidthResult is what one side measured in one run.
type BandwidthResult struct {
	Messages int64         `json:"messages"` // of all queue pairs
	Time     time.Duration `json:"time_ns"`
	Peak     float64       `json:"peak"` // bytes per second
}

// Rate returns the average in bytes per second, for messages of the given size.
func (r *BandwidthResult) Rate(bytes int) float64 {
	if r.Time <= 0 {
		return 0
	}
	return float64(r.Messages) * float64(bytes) / r.Time.Seconds()
}

// flow is the state of one queue pair's send queue.
type flow struct {
	posted      int64
	outstanding int
	wrs         []roce.SendWR // a batch that is ready to be posted; the last one is signaled
}

// bandwidth is one run of a bandwidth test.
type bandwidth struct {
	*Side
	run         Run
	flows       []flow
	batch       int
	completed   int64
	outstanding int64
	samples     []sample
}

// sample is the number of messages that had completed at a time.
type sample struct {
	at        time.Time
	completed int64
}

func newBandwidth(s *Side, run Run) *bandwidth {
	b := &bandwidth{
		Side: s, run: run, flows: make([]flow, s.Params.QPs),
		samples: make([]sample, 0, maxSamples),
		batch:   s.Params.Batch(run.Bytes),
	}
	for i := range b.flows {
		b.flows[i].wrs = s.sendWRs(i, b.batch, run.Bytes)
	}
	return b
}

// measure performs the run. It returns when the last message has completed.
func (b *bandwidth) measure(ctx context.Context) (BandwidthResult, error) {
	start := time.Now()
	b.samples = append(b.samples, sample{at: start})
	var deadline time.Time
	if b.run.Duration > 0 {
		deadline = start.Add(b.run.Duration)
	}
	now, more, complete := start, true, b.complete
	for i := 1; ; i++ {
		if more {
			var err error
			if more, err = b.post(); err != nil {
				return BandwidthResult{}, err
			}
		}
		if !more && b.outstanding == 0 {
			return b.result(start, now), nil
		}
		n, err := b.poll(ctx)
		if err != nil {
			return BandwidthResult{}, err
		}
		if n > 0 {
			now = time.Now()
			if err := b.each(n, complete); err != nil {
				return BandwidthResult{}, err
			}
			b.sample(now)
			more = more && (deadline.IsZero() || now.Before(deadline))
		}
		if (n == 0 || i%checkEvery == 0) && ctx.Err() != nil {
			return BandwidthResult{}, context.Cause(ctx)
		}
	}
}

// post fills the send queues. It reports whether the run has more messages to post.
func (b *bandwidth) post() (bool, error) {
	more := false
	for i := range b.flows {
		f := &b.flows[i]
		for f.outstanding+b.batch <= b.Params.Depth {
			n := b.batch
			if b.run.Duration == 0 {
				n = int(min(int64(n), int64(b.run.Iterations)-f.posted))
			}
			if n == 0 {
				break
			}
			if err := b.postBatch(i, n); err != nil {
				return false, err
			}
		}
		more = more || b.run.Duration > 0 || f.posted < int64(b.run.Iterations)
	}
	return more, nil
}

// postBatch posts the last n work requests of a batch, so that the last one is signaled.
func (b *bandwidth) postBatch(i, n int) error {
	f := &b.flows[i]
	wrs := f.wrs[len(f.wrs)-n:]
	wrs[n-1].ID = uint64(i)<<idQPShift | uint64(n)
	if err := b.Session.QPs[i].PostSend(wrs...); err != nil {
		return fmt.Errorf("post %v: %w", b.Params.Op, err)
	}
	f.posted += int64(n)
	f.outstanding += n
	b.outstanding += int64(n)
	return nil
}

// complete handles the completion of a batch of messages or of a receive.
func (b *bandwidth) complete(wc *roce.WC) error {
	if wc.ID&recvFlag != 0 {
		return b.repost(wc)
	}
	n := int(wc.ID & idCountMask)
	b.flows[wc.ID>>idQPShift].outstanding -= n
	b.outstanding -= int64(n)
	b.completed += int64(n)
	return nil
}

// sample adds a sample if the last one is old enough for the peak. It also requires a number of
// batches: completions arrive in bursts, and a short interval that ends with a burst is no peak.
func (b *bandwidth) sample(now time.Time) {
	last := &b.samples[len(b.samples)-1]
	needed := int64(peakBatches * b.batch * b.Params.QPs)
	if now.Sub(last.at) >= peakInterval && b.completed-last.completed >= needed &&
		len(b.samples) < cap(b.samples) {
		b.samples = append(b.samples, sample{now, b.completed})
	}
}

func (b *bandwidth) result(start, end time.Time) BandwidthResult {
	r := BandwidthResult{Messages: b.completed, Time: end.Sub(start)}
	for i := 1; i < len(b.samples); i++ {
		from, to := &b.samples[i-1], &b.samples[i]
		rate := float64(to.completed-from.completed) * float64(b.run.Bytes) / to.at.Sub(from.at).Seconds()
		r.Peak = max(r.Peak, rate)
	}
	// The whole run is an interval too, and the only one of a short run.
	r.Peak = max(r.Peak, r.Rate(b.run.Bytes))
	return r
}
