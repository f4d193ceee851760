package perf

import (
	"context"
	"sync/atomic"

	"github.com/gorxe/gorxe/internal/endpoint"
	"github.com/gorxe/gorxe/internal/session"
	"github.com/gorxe/gorxe/roce"
)

// Batches of completions and work requests.
const (
	PollBatch = 64 // completions polled at a time
	MaxBatch  = 32 // work requests posted, and receives reposted, at a time
)

// A work request's ID contains the index of its queue pair. The lower half of a send's ID is the
// number of messages that complete with it.
const (
	recvFlag    = uint64(1) << 63
	idQPShift   = 32
	idCountMask = 1<<idQPShift - 1
)

// RecvID returns the ID of receives on queue pair qp.
func RecvID(qp int) uint64 { return recvFlag | uint64(qp)<<idQPShift }

// ParseRecvID returns the index of the queue pair if id is from RecvID.
func ParseRecvID(id uint64) (qp int, ok bool) {
	return int(id &^ recvFlag >> idQPShift), id&recvFlag != 0
}

// Side is one side of a session while it runs. Its methods belong to one goroutine; other
// goroutines use only PeerDone.
type Side struct {
	Session  *session.Session
	Params   *Params
	PeerDone atomic.Bool // the peer has ended the current run

	manual  bool // the goroutine drives the device
	posted  bool // the receives are posted
	reposts []int
	recvs   []roce.RecvWR
	wcs     [PollBatch]roce.WC
}

// NewSide returns a side of the test p on s.
func NewSide(s *session.Session, p *Params) *Side {
	return &Side{
		Session: s, Params: p, manual: s.Dev.Info().Progress == roce.Manual,
		reposts: make([]int, p.QPs), recvs: make([]roce.RecvWR, MaxBatch),
	}
}

// Outcome is what a side reports at the end of a run: what it measured, if it did.
type Outcome struct {
	Bandwidth *BandwidthResult `json:"bandwidth,omitempty"`
	Latency   *LatencyResult   `json:"latency,omitempty"`
}

// Prepare makes the side ready for a run. Call it before the peer can start the run.
func (s *Side) Prepare(r Run) error {
	if s.Params.Operation.Reply != ReplyNone {
		newLatency(s, r).clearMark()
	}
	return s.postRecvs()
}

// Measure performs one run as the side that measures.
func (s *Side) Measure(ctx context.Context, r Run) (own Outcome, err error) {
	if s.Params.Operation.Latency {
		times, err := newLatency(s, r).measure(ctx)
		if err != nil {
			return own, err
		}
		own.Latency = NewLatencyResult(times)
		return own, nil
	}
	res, err := newBandwidth(s, r).measure(ctx)
	own.Bandwidth = &res
	return own, err
}

// MeasureReplies is like Measure for a write-lat test in which the server sends first. It records
// the time between the server's messages.
func (s *Side) MeasureReplies(ctx context.Context, r Run) (own Outcome, err error) {
	times, n, err := newLatency(s, r).measureReplies(ctx)
	if err != nil {
		return own, err
	}
	own.Latency = NewLatencyResult(times)
	own.Latency.Samples = n
	return own, nil
}

// AwaitPeer handles completions until done is closed and PeerDone is set. It returns the cause of
// ctx if ctx ends first.
func (s *Side) AwaitPeer(ctx context.Context, done <-chan struct{}) error {
	waiting, cancel := UntilDone(ctx, done)
	defer cancel()
	for !s.PeerDone.Load() {
		n, err := s.wait(waiting)
		if err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := s.each(n, s.repost); err != nil {
			return err
		}
	}
	return nil
}

// UntilDone returns a context that also ends when done is closed.
func UntilDone(ctx context.Context, done <-chan struct{}) (context.Context, context.CancelFunc) {
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

// poll polls for completions. Unless the goroutine drives the device, it blocks until there are
// some or ctx ends, which is no error.
func (s *Side) poll(ctx context.Context) (int, error) {
	n := s.Session.CQ.Poll(s.wcs[:])
	if n > 0 || s.manual {
		return n, nil
	}
	return s.wait(ctx)
}

// wait blocks until there are completions or ctx ends, which is no error.
func (s *Side) wait(ctx context.Context) (int, error) {
	n, err := s.Session.CQ.Wait(ctx, s.wcs[:])
	if err != nil && ctx.Err() != nil {
		return 0, nil
	}
	return n, err
}

// each calls f for the first n polled completions. It stops at the first failed one.
func (s *Side) each(n int, f func(wc *roce.WC) error) error {
	for i := range s.wcs[:n] {
		if s.wcs[i].Status != roce.Success {
			return endpoint.StatusError(&s.wcs[i])
		}
		if err := f(&s.wcs[i]); err != nil {
			return err
		}
	}
	return nil
}

// postRecvs fills the receive queues once per session. Receives that a run does not use remain for
// the next one.
func (s *Side) postRecvs() error {
	if !s.Params.Operation.Recv || s.posted {
		return nil
	}
	s.posted = true
	for i := range s.Session.QPs {
		for range recvDepth / MaxBatch {
			if err := s.postRecvBatch(i); err != nil {
				return err
			}
		}
	}
	return nil
}

// postRecvBatch posts MaxBatch receives. All use the same buffer, because a bandwidth test does not
// look at the data.
func (s *Side) postRecvBatch(i int) error {
	sge := []roce.SGE{s.Session.MR.SGE(s.Session.In(i), s.Params.Bytes)}
	for k := range s.recvs {
		s.recvs[k] = roce.RecvWR{ID: RecvID(i), SGEs: sge}
	}
	return s.Session.QPs[i].PostRecv(s.recvs...)
}

// repost counts a receive's completion and posts new receives, one batch at a time. It ignores
// other completions, which are left over from a run that was stopped.
func (s *Side) repost(wc *roce.WC) error {
	i, ok := ParseRecvID(wc.ID)
	if !ok {
		return nil
	}
	if s.reposts[i]++; s.reposts[i] < MaxBatch {
		return nil
	}
	s.reposts[i] = 0
	return s.postRecvBatch(i)
}

// sendWRs returns a batch of n equal work requests for queue pair i. The last one is signaled.
func (s *Side) sendWRs(i, n, bytes int) []roce.SendWR {
	peer := s.Session.Peer[i].Buffer
	wrs := make([]roce.SendWR, n)
	for k := range wrs {
		wrs[k] = roce.SendWR{
			Op: s.Params.op(), SGEs: []roce.SGE{s.Session.MR.SGE(s.Session.Out(i), bytes)},
			RemoteAddr: peer.Addr, RKey: peer.RKey, SwapAdd: 1,
		}
	}
	wrs[n-1].Flags = roce.Signaled
	return wrs
}
