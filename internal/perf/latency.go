package perf

import (
	"context"
	"errors"
	"time"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/roce"
)

// errPeerStopped means that the server ended the run before the client.
var errPeerStopped = errors.New("the peer ended the run too early: use the same gorxe on both sides")

// latency is one run of a latency test, on either side.
type latency struct {
	*Side
	run        Run
	wr         []roce.SendWR // one
	recv       []roce.RecvWR // one
	in         int           // offset in MR of the last byte of the peer's messages
	out        int           // offset in MR of the last byte of the local side's messages
	sends      int           // sends that have not completed
	recvs      int           // completed receives that were not used yet
	spin       Spinner
	completeFn func(*roce.WC) error // complete; creating the method value allocates

	deadline time.Time // of measureReplies; zero: a number of messages ends the run
}

func newLatency(s *Side, run Run) *latency {
	l := &latency{
		Side: s, run: run, wr: s.sendWRs(0, 1, run.Bytes), spin: NewSpinner(s.Session.Dev),
		in: s.Session.In(0) + run.Bytes - 1, out: s.Session.Out(0) + run.Bytes - 1,
	}
	l.recv = []roce.RecvWR{{
		ID: RecvID(0), SGEs: []roce.SGE{s.Session.MR.SGE(s.Session.In(0), s.Params.Bytes)},
	}}
	l.completeFn = l.complete
	return l
}

// clearMark makes the side ready for the first message of a run, which has mark 1.
func (l *latency) clearMark() { l.Session.MR.Store8(l.in, 0) }

// mark returns the last byte of message number i, counted from 1, as in perftest. It differs from
// that of the previous message, and the first one is not 0.
func mark(i int64) byte { return byte(i) }

// post sends message number i.
func (l *latency) post(i int64) error {
	l.Session.MR.Store8(l.out, mark(i))
	l.sends++
	return l.Session.QP.PostSend(l.wr...)
}

func (l *latency) complete(wc *roce.WC) error {
	if wc.ID&recvFlag != 0 {
		l.recvs++
	} else {
		l.sends--
	}
	return nil
}

// poll polls once and handles completions. It reports whether the run must stop.
func (l *latency) poll(ctx context.Context) (stopped bool, err error) {
	n := l.Session.CQ.Poll(l.wcs[:])
	if err := l.each(n, l.completeFn); err != nil {
		return false, err
	}
	if n > 0 {
		l.spin.Found()
		return false, nil
	}
	if !l.spin.Empty() {
		return false, nil
	}
	if ctx.Err() != nil {
		return true, context.Cause(ctx)
	}
	return l.PeerDone.Load() || l.expired(), nil
}

func (l *latency) expired() bool { return !l.deadline.IsZero() && time.Now().After(l.deadline) }

// pollUntil polls until ready returns true. It returns false if the run must stop first.
func (l *latency) pollUntil(ctx context.Context, ready func() bool) (bool, error) {
	for !ready() {
		stopped, err := l.poll(ctx)
		if stopped || err != nil {
			return false, err
		}
	}
	return true, nil
}

// awaitMessage waits for message number i of the peer.
func (l *latency) awaitMessage(ctx context.Context, i int64) (bool, error) {
	if l.Params.Operation.Reply == ReplyWrite {
		return l.pollUntil(ctx, func() bool { return l.Session.MR.Load8(l.in) == mark(i) })
	}
	ok, err := l.pollUntil(ctx, func() bool { return l.recvs > 0 })
	if !ok || err != nil {
		return ok, err
	}
	l.recvs--
	return true, l.Session.QP.PostRecv(l.recv...)
}

// awaitSends waits until at most left sends have not completed.
func (l *latency) awaitSends(ctx context.Context, left int) (bool, error) {
	return l.pollUntil(ctx, func() bool { return l.sends <= left })
}

// measure performs the run as the client.
func (l *latency) measure(ctx context.Context) (*cli.Latency, error) {
	l.spin.Start()
	defer l.spin.Stop()
	times := cli.NewLatency()
	var deadline time.Time
	if l.run.Duration > 0 {
		deadline = time.Now().Add(l.run.Duration)
	}
	for i := int64(1); !deadline.IsZero() || i <= int64(l.run.Iterations); i++ {
		start := time.Now()
		if !deadline.IsZero() && start.After(deadline) {
			break
		}
		ok, err := l.roundTrip(ctx, i)
		if err == nil && !ok {
			err = errPeerStopped
		}
		if err != nil {
			return nil, err
		}
		d := time.Since(start)
		if l.Params.Operation.Reply != ReplyNone {
			d /= 2 // one way, like perftest
		}
		times.Record(d)
		if ok, err := l.awaitSends(ctx, latencyDepth/2); !ok || err != nil {
			return nil, err
		}
	}
	_, err := l.awaitSends(ctx, 0)
	return times, err
}

// roundTrip performs one round trip.
func (l *latency) roundTrip(ctx context.Context, i int64) (bool, error) {
	if err := l.post(i); err != nil {
		return false, err
	}
	if l.Params.Operation.Reply == ReplyNone {
		return l.awaitSends(ctx, 0)
	}
	return l.awaitMessage(ctx, i)
}

// measureReplies performs the run as a client whose server sends first, as in ib_write_lat. It
// returns the times between the server's messages, and the number of messages.
func (l *latency) measureReplies(ctx context.Context) (
	times *cli.Latency, messages int64, err error) {
	l.spin.Start()
	defer l.spin.Stop()
	times = cli.NewLatency()
	var last time.Time
	for l.run.Duration > 0 || messages < int64(l.run.Iterations) {
		ok, err := l.awaitMessage(ctx, messages+1)
		switch {
		case err == nil && !ok && l.expired():
			// The server stops when its own time is over, so there may be no last message.
			return times, messages, nil
		case err == nil && !ok:
			err = errPeerStopped
		}
		if err != nil {
			return nil, 0, err
		}
		now := time.Now()
		if messages++; messages > 1 {
			times.Record(now.Sub(last) / 2)
		} else if l.run.Duration > 0 {
			l.deadline = now.Add(l.run.Duration)
		}
		last = now
		if err := l.post(messages); err != nil {
			return nil, 0, err
		}
		if ok, err := l.awaitSends(ctx, latencyDepth/2); err != nil || !ok && !l.expired() {
			return nil, 0, err
		}
		if l.expired() {
			return times, messages, nil
		}
	}
	_, err = l.awaitSends(ctx, 0)
	return times, messages, err
}

// reply performs the run as the server: it sends each message back until the client is done.
func (l *latency) reply(ctx context.Context) error {
	l.spin.Start()
	defer l.spin.Stop()
	for i := int64(1); ; i++ {
		ok, err := l.awaitMessage(ctx, i)
		if !ok || err != nil {
			return err
		}
		if err := l.post(i); err != nil {
			return err
		}
		if ok, err := l.awaitSends(ctx, latencyDepth/2); !ok || err != nil {
			return err
		}
	}
}
