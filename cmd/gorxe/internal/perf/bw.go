package perf

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/gorxe/gorxe/internal/session"
	"github.com/gorxe/gorxe/roce"
)

const (
	pollBatch   = 64                    // completions polled at a time
	maxBatch    = 32                    // work requests posted, and receives reposted, at a time
	peakSpan    = 10 * time.Millisecond // shortest span that counts for the peak
	peakLumps   = 8                     // likewise: batches of each QP
	batchBytes  = 1 << 20               // posted at a time, unless one message is larger
	maxSamples  = 1 << 14               // of the run; beyond, the rest counts as one span
	lookEvery   = 256                   // turns between two looks at the outside world
	recvFlag    = uint64(1) << 63       // in a work request's ID: a receive
	idQPShift   = 32                    // in a work request's ID: the QP's index
	idCountMask = 1<<idQPShift - 1      // in a work request's ID: how many complete with it
)

// end is one end of a session while it runs. The loops of bw.go and lat.go
// belong to one goroutine; peerDone and abort are how others reach it.
type end struct {
	s      *session.Session
	p      *Params
	manual bool // this goroutine drives the device

	posted   bool  // receives are posted
	reposts  []int // a QP: receives to be posted again
	recvs    []roce.RecvWR
	wcs      [pollBatch]roce.WC
	peerDone atomic.Bool // the peer has sent its last message of this run
}

func newEnd(s *session.Session, p *Params) *end {
	return &end{
		s: s, p: p, manual: s.Dev.Info().Progress == roce.Manual,
		reposts: make([]int, p.QPs), recvs: make([]roce.RecvWR, maxBatch),
	}
}

// result is what one end measured in one run.
type result struct {
	Messages int64         `json:"messages"` // all QPs together
	Time     time.Duration `json:"time_ns"`
	Peak     float64       `json:"peak"` // bytes a second, 0 in a run too short for it
}

// poll takes completions. A manual device is driven and spun on; else the call
// blocks until there are some, or ctx is done, which is no error.
func (e *end) poll(ctx context.Context) (int, error) {
	n := e.s.CQ.Poll(e.wcs[:])
	if n > 0 || e.manual {
		return n, nil
	}
	return e.wait(ctx)
}

// wait blocks until there are completions, or ctx is done, which is no error.
func (e *end) wait(ctx context.Context) (int, error) {
	n, err := e.s.CQ.Wait(ctx, e.wcs[:])
	if err != nil && ctx.Err() != nil {
		return 0, nil
	}
	return n, err
}

// postRecvs fills the receive queues, once in a session: what is not used in
// one run serves in the next.
func (e *end) postRecvs() error {
	if !e.p.op.recv || e.posted {
		return nil
	}
	e.posted = true
	for i := range e.s.QPs {
		for range recvDepth / maxBatch {
			if err := e.postRecvBatch(i); err != nil {
				return err
			}
		}
	}
	return nil
}

// postRecvBatch posts maxBatch receives. All use the QP's one buffer: nobody
// looks at what a bandwidth test brings.
func (e *end) postRecvBatch(i int) error {
	sge := []roce.SGE{e.s.MR.SGE(e.s.In(i), e.p.Bytes)}
	for k := range e.recvs {
		e.recvs[k] = roce.RecvWR{ID: recvFlag | uint64(i)<<idQPShift, SGEs: sge}
	}
	return e.s.QPs[i].PostRecv(e.recvs...)
}

// received takes note of a receive's completion and posts receives again, a batch at a time. What a run that was
// stopped has left over is of no interest.
func (e *end) received(wc *roce.WC) error {
	if wc.ID&recvFlag == 0 {
		return nil
	}
	i := int(wc.ID &^ recvFlag >> idQPShift)
	if e.reposts[i]++; e.reposts[i] < maxBatch {
		return nil
	}
	e.reposts[i] = 0
	return e.postRecvBatch(i)
}

// each hands the first n completions polled to on, as far as they are good.
func (e *end) each(n int, on func(wc *roce.WC) error) error {
	for i := range e.wcs[:n] {
		if e.wcs[i].Status != roce.Success {
			return session.StatusError(&e.wcs[i])
		}
		if err := on(&e.wcs[i]); err != nil {
			return err
		}
	}
	return nil
}

// serve keeps this end answering until the peer is done.
func (e *end) serve(ctx context.Context, done <-chan struct{}) error {
	waiting, cancel := untilDone(ctx, done)
	defer cancel()
	for !e.peerDone.Load() {
		n, err := e.wait(waiting)
		if err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := e.each(n, e.received); err != nil {
			return err
		}
	}
	return nil
}

// untilDone is ctx that ends with done too.
func untilDone(ctx context.Context, done <-chan struct{}) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		select {
		case <-done:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// flow is the state of one QP's send queue.
type flow struct {
	posted      int64
	outstanding int
	wrs         []roce.SendWR // a batch, ready to be posted; the last is signalled
}

// bandwidth is one active run.
type bandwidth struct {
	*end
	run       Run
	flows     []flow
	batch     int
	completed int64
	inFlight  int64
	samples   []sample
}

// sample says how much was completed when.
type sample struct {
	at        time.Time
	completed int64
}

func newBandwidth(e *end, run Run) *bandwidth {
	b := &bandwidth{end: e, run: run, flows: make([]flow, e.p.QPs), samples: make([]sample, 0, maxSamples)}
	b.batch = e.p.batch(run.Bytes)
	for i := range b.flows {
		b.flows[i].wrs = e.sendWRs(i, b.batch, run.Bytes)
	}
	return b
}

// batch is how many work requests are posted at a time, the last one signalled: half a queue at most, so that
// one half completes while the other is under way, and few if they are large.
func (p *Params) batch(bytes int) int {
	return max(1, min(maxBatch, p.Depth/2, batchBytes/bytes))
}

// sendWRs prepares a batch of n equal work requests for QP i, the last one signalled.
func (e *end) sendWRs(i, n, bytes int) []roce.SendWR {
	peer := e.s.Peer[i].Buffer
	wrs := make([]roce.SendWR, n)
	for k := range wrs {
		wrs[k] = roce.SendWR{
			Op: e.p.wr(), SGEs: []roce.SGE{e.s.MR.SGE(e.s.Out(i), bytes)},
			RemoteAddr: peer.Addr, RKey: peer.RKey, SwapAdd: 1,
		}
	}
	wrs[n-1].Flags = roce.Signaled
	return wrs
}

// measure runs to the end of the run. It returns when the last message has completed.
func (b *bandwidth) measure(ctx context.Context) (result, error) {
	start := time.Now()
	b.samples = append(b.samples, sample{at: start})
	var deadline time.Time
	if b.run.Duration > 0 {
		deadline = start.Add(b.run.Duration)
	}
	now, more, on := start, true, b.complete
	for turn := 1; ; turn++ {
		if more {
			var err error
			if more, err = b.post(); err != nil {
				return result{}, err
			}
		}
		if !more && b.inFlight == 0 {
			return b.result(start, now), nil
		}
		n, err := b.poll(ctx)
		if err != nil {
			return result{}, err
		}
		if n > 0 {
			now = time.Now()
			if err := b.each(n, on); err != nil {
				return result{}, err
			}
			b.sample(now)
			more = more && (deadline.IsZero() || now.Before(deadline))
		}
		if n == 0 || turn%lookEvery == 0 {
			if ctx.Err() != nil {
				return result{}, context.Cause(ctx)
			}
		}
	}
}

// post fills the send queues, and tells whether more is to be posted later.
func (b *bandwidth) post() (bool, error) {
	more := false
	for i := range b.flows {
		f := &b.flows[i]
		for f.outstanding+b.batch <= b.p.Depth {
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

// postBatch posts n work requests, taken from the end of the batch, so that the last is the signalled one.
func (b *bandwidth) postBatch(i, n int) error {
	f := &b.flows[i]
	wrs := f.wrs[len(f.wrs)-n:]
	wrs[n-1].ID = uint64(i)<<idQPShift | uint64(n)
	if err := b.s.QPs[i].PostSend(wrs...); err != nil {
		return fmt.Errorf("post %v: %w", b.p.op.name, err)
	}
	f.posted += int64(n)
	f.outstanding += n
	b.inFlight += int64(n)
	return nil
}

// complete takes note of a batch of messages that is complete, or of a receive.
func (b *bandwidth) complete(wc *roce.WC) error {
	if wc.ID&recvFlag != 0 {
		return b.received(wc)
	}
	n := int(wc.ID & idCountMask)
	b.flows[wc.ID>>idQPShift].outstanding -= n
	b.inFlight -= int64(n)
	b.completed += int64(n)
	return nil
}

// sample keeps the time if the last one kept is peakSpan ago, and that many batches of every QP: completions
// come in lumps, and a short span with a lump at its end is no peak.
func (b *bandwidth) sample(now time.Time) {
	last := &b.samples[len(b.samples)-1]
	lump := int64(b.batch * b.p.QPs)
	if now.Sub(last.at) >= peakSpan && b.completed-last.completed >= peakLumps*lump && len(b.samples) < cap(b.samples) {
		b.samples = append(b.samples, sample{now, b.completed})
	}
}

func (b *bandwidth) result(start, end time.Time) result {
	r := result{Messages: b.completed, Time: end.Sub(start)}
	for i := 1; i < len(b.samples); i++ {
		from, to := &b.samples[i-1], &b.samples[i]
		rate := float64(to.completed-from.completed) * float64(b.run.Bytes) / to.at.Sub(from.at).Seconds()
		r.Peak = max(r.Peak, rate)
	}
	// The whole run is a span too, and the only one if it was short.
	r.Peak = max(r.Peak, r.rate(b.run.Bytes))
	return r
}

// rate is the average in bytes a second.
func (r *result) rate(bytes int) float64 {
	if r.Time <= 0 {
		return 0
	}
	return float64(r.Messages) * float64(bytes) / r.Time.Seconds()
}

// errPeerStopped: the server ended a run that it was to serve.
var errPeerStopped = errors.New("the peer ended the run too early: use the same gorxe on both ends")
