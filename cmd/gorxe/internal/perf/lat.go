package perf

import (
	"context"
	"runtime"
	"time"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/roce"
)

const (
	// A loop that polls in vain rests now and then: after spinTurns looks in a row.
	spinTurns = 2048 // a multiple of lookEvery
	nap       = 20 * time.Microsecond
)

// latency is one run of a latency test, on either end.
type latency struct {
	*end
	run   Run
	wr    []roce.SendWR // one
	recv  []roce.RecvWR // one
	in    int           // offset in MR of the last byte that the peer writes
	out   int           // offset in MR of the last byte that this end sends
	sends int           // sends that have not completed
	recvs int           // receives that have completed and were not yet used
	idle  int           // looks in a row that found nothing
	on    func(*roce.WC) error

	deadline time.Time // of follow; zero: it ends by the number of messages
}

func newLatency(e *end, run Run) *latency {
	l := &latency{
		end: e, run: run, wr: e.sendWRs(0, 1, run.Bytes),
		in: e.s.In(0) + run.Bytes - 1, out: e.s.Out(0) + run.Bytes - 1,
	}
	l.recv = []roce.RecvWR{{ID: recvFlag, SGEs: []roce.SGE{e.s.MR.SGE(e.s.In(0), e.p.Bytes)}}}
	l.on = l.complete // once: a method value allocates
	return l
}

// prepare makes this end ready for the first message of a run.
func (l *latency) prepare() {
	l.s.MR.Store8(l.in, 0) // the first message carries 1
}

// post sends message number i.
func (l *latency) post(i int64) error {
	l.s.MR.Store8(l.out, mark(i))
	l.sends++
	return l.s.QPs[0].PostSend(l.wr...)
}

// mark is the last byte of message number i, counted from 1, as perftest has it: it differs from that of the message
// before, and the first one differs from 0.
func mark(i int64) byte { return byte(i) }

// complete takes note of a completion.
func (l *latency) complete(wc *roce.WC) error {
	if wc.ID&recvFlag != 0 {
		l.recvs++
	} else {
		l.sends--
	}
	return nil
}

// look polls once and takes note of completions. It tells whether the run was stopped from outside.
func (l *latency) look(ctx context.Context) (stopped bool, err error) {
	n := l.s.CQ.Poll(l.wcs[:])
	if err := l.each(n, l.on); err != nil {
		return false, err
	}
	if n > 0 {
		l.idle = 0
		return false, nil
	}
	if l.idle++; l.idle%lookEvery != 0 {
		return false, nil
	}
	if l.idle >= spinTurns {
		l.idle = 0
		l.rest()
	}
	if ctx.Err() != nil {
		return true, context.Cause(ctx)
	}
	return l.peerDone.Load() || l.over(), nil
}

func (l *latency) over() bool { return !l.deadline.IsZero() && time.Now().After(l.deadline) }

// rest lets others have the core after a long look in vain: a goroutine that waits for the peer's last word may need
// it, and a device that drives itself has a thread of its own.
func (l *latency) rest() {
	if l.manual {
		runtime.Gosched()
		return
	}
	time.Sleep(nap)
}

// until polls until ready. It returns false if the peer is done first.
func (l *latency) until(ctx context.Context, ready func() bool) (bool, error) {
	for !ready() {
		stopped, err := l.look(ctx)
		if stopped || err != nil {
			return false, err
		}
	}
	return true, nil
}

// arrived waits for message number i of the peer's.
func (l *latency) arrived(ctx context.Context, i int64) (bool, error) {
	if l.p.op.echo == echoWrite {
		return l.until(ctx, func() bool { return l.s.MR.Load8(l.in) == mark(i) })
	}
	ok, err := l.until(ctx, func() bool { return l.recvs > 0 })
	if !ok || err != nil {
		return ok, err
	}
	l.recvs--
	return true, l.s.QPs[0].PostRecv(l.recv...)
}

// drained waits until no send is outstanding beyond the send queue's room.
func (l *latency) drained(ctx context.Context, left int) (bool, error) {
	return l.until(ctx, func() bool { return l.sends <= left })
}

// measure is the client's side.
func (l *latency) measure(ctx context.Context) (*cli.Latency, error) {
	if l.manual {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
	}
	times := cli.NewLatency()
	var deadline time.Time
	if l.run.Duration > 0 {
		deadline = time.Now().Add(l.run.Duration)
	}
	for i := int64(1); deadline.IsZero() && i <= int64(l.run.Iterations) || !deadline.IsZero(); i++ {
		start := time.Now()
		if !deadline.IsZero() && start.After(deadline) {
			break
		}
		ok, err := l.trip(ctx, i)
		if err == nil && !ok {
			err = errPeerStopped
		}
		if err != nil {
			return nil, err
		}
		d := time.Since(start)
		if l.p.op.echo != echoNone {
			d /= 2 // one way, as perftest shows it
		}
		times.Record(d)
		if ok, err := l.drained(ctx, outstandingOne/2); !ok || err != nil {
			return nil, err
		}
	}
	_, err := l.drained(ctx, 0)
	return times, err
}

// follow is the client's side where the server sends first, as in ib_write_lat. It counts the messages, which are one
// more than there are times between them.
func (l *latency) follow(ctx context.Context) (times *cli.Latency, messages int64, err error) {
	if l.manual {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
	}
	times = cli.NewLatency()
	var last time.Time
	for l.run.Duration > 0 || messages < int64(l.run.Iterations) {
		ok, err := l.arrived(ctx, messages+1)
		switch {
		case err == nil && !ok && l.over():
			return times, messages, nil // the server's last message may be lost: it leaves when its own time is over
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
		if ok, err := l.drained(ctx, outstandingOne/2); err != nil || !ok && !l.over() {
			return nil, 0, err
		}
		if l.over() {
			return times, messages, nil
		}
	}
	_, err = l.drained(ctx, 0)
	return times, messages, err
}

// trip is one round trip.
func (l *latency) trip(ctx context.Context, i int64) (bool, error) {
	if err := l.post(i); err != nil {
		return false, err
	}
	if l.p.op.echo == echoNone {
		return l.drained(ctx, 0)
	}
	return l.arrived(ctx, i)
}

// answer is the server's side: it sends each message back until the client is done.
func (l *latency) answer(ctx context.Context) error {
	if l.manual {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
	}
	for i := int64(1); ; i++ {
		ok, err := l.arrived(ctx, i)
		if !ok || err != nil {
			return err
		}
		if err := l.post(i); err != nil {
			return err
		}
		if ok, err := l.drained(ctx, outstandingOne/2); !ok || err != nil {
			return err
		}
	}
}
