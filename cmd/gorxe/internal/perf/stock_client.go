package perf

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gorxe/gorxe/internal/device"
	"github.com/gorxe/gorxe/internal/perftest"
	"github.com/gorxe/gorxe/internal/session"
	"github.com/gorxe/gorxe/roce"
)

const (
	// A server that has counted its last message closes, maybe before this end has looked at that message.
	grace = time.Second
	// A write-lat server, where it is perftest's, leaves by itself when its last message is acknowledged.
	leaving = 250 * time.Millisecond
	// How long a client that is interrupted gives the last words.
	lastWords = 3 * time.Second
)

// errServerGone: the server went away, or its user's flags were others.
var errServerGone = fmt.Errorf("%w in the midst of the run: start both ends with the same test and flags (-s, -n, -D, -q, -a)", perftest.ErrGone)

// stockOptions are what a session with a perftest server has to know beforehand, beside the Params.
type stockOptions struct {
	all      bool // a run for each size
	duration bool
	infinite bool // runs without end are one to the server
	gbits    bool // the unit of reports
}

// stockClient is the client's end of a session with a perftest server.
type stockClient struct {
	*end
	stockOptions
	at    meeting
	talk  *perftest.Client
	conns []*roce.Conn // by rdma_cm

	started bool
	last    outcome // of the last run
	lastRun Run
}

// openStock goes on after the greeting, up to the point where both ends are connected and ready. It owns the link when it succeeds.
func openStock(ctx context.Context, dev *roce.Device, flags *device.Flags, at meeting, talk *perftest.Client, p *Params, o stockOptions) (*stockClient, error) {
	t, err := p.stockTest()
	if err != nil {
		return nil, err
	}
	t.All, t.Duration = o.all, o.duration
	cfg := p.session()
	cfg.Flags, cfg.Bytes = flags, max(cfg.Bytes, pageBytes) // as much as every perftest has
	s, err := session.New(dev, at.local, cfg)
	if err != nil {
		return nil, err
	}
	k := &stockClient{end: newEnd(s, p), stockOptions: o, at: at, talk: talk}
	if err := k.connect(ctx, t); err != nil {
		k.hangUp()
		return nil, err
	}
	return k, nil
}

func (k *stockClient) connect(ctx context.Context, t perftest.Test) error {
	mtu, err := stockMTU(k.s, k.p.MTU)
	if err != nil {
		return err
	}
	if mtu, err = k.talk.Agree(ctx, mtu); err != nil {
		return err
	}
	if k.at.byCM() {
		if mtu, err = k.dialAll(ctx); err != nil {
			return err
		}
	}
	own := make([]perftest.Key, k.p.QPs)
	for i := range own {
		own[i] = stockKey(k.s, i)
		if t.Verb == perftest.Write || t.Verb == perftest.Send {
			own[i].OutReads = 1 // as perftest has it: servers may see the test by that
		}
	}
	peer, err := k.talk.Keys(ctx, t, own)
	if err != nil {
		return err
	}
	for i := range peer {
		if !k.at.byCM() {
			if err := connectStock(ctx, k.s, i, peer[i], mtu); err != nil {
				return err
			}
		}
		k.s.Peer = append(k.s.Peer, stockPeer(peer[i], mtu, k.p.Bytes))
	}
	return k.during(ctx, k.talk.Start)
}

func (k *stockClient) session() *session.Session { return k.s }

// during says something to the server over TCP while this end's queue pairs answer.
func (k *stockClient) during(ctx context.Context, say func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan struct{})
	k.peerDone.Store(false)
	var said error
	go func() {
		said = say(ctx)
		k.peerDone.Store(true)
		close(done)
	}()
	err := k.serve(ctx, done)
	if err != nil {
		cancel(err)
	}
	<-done
	if said != nil && err == nil {
		err = said
	}
	return err
}

// once is one run.
func (k *stockClient) once(ctx context.Context, r Run) (*Row, error) {
	// The server of write-lat sends first, maybe already now: what it writes to is not to be cleared, and was not used.
	if k.p.op.echo != echoWrite {
		if err := k.prepare(r); err != nil {
			return nil, err
		}
	}
	if !k.infinite || !k.started {
		if err := k.during(ctx, k.talk.BeforeRun); err != nil {
			return nil, err
		}
	}
	k.started = true
	own, err := k.watched(ctx, r)
	if err != nil {
		return nil, err
	}
	k.last, k.lastRun = own, r
	if !k.infinite {
		err = k.during(ctx, func(ctx context.Context) error {
			_, err := k.talk.AfterRun(ctx, k.report())
			return err
		})
	}
	if err != nil {
		return nil, err
	}
	return newRow(k.p, r, k.s, own, outcome{})
}

// watched is measure that ends if the server goes.
func (k *stockClient) watched(parent context.Context, r Run) (own outcome, err error) {
	ctx, stop := k.watch(parent)
	defer func() {
		stop()
		if err != nil && parent.Err() == nil && !errors.Is(err, errServerGone) {
			err = k.blame(parent, err)
		}
	}()
	k.peerDone.Store(false)
	if k.p.op.echo == echoWrite {
		own, err = k.follow(ctx, r)
	} else {
		own, err = k.measure(ctx, r)
	}
	if err != nil {
		err = cause(ctx, err)
	}
	return own, err
}

// blame says that the server went, if that is why a run has failed: its queue pairs go before its connection.
func (k *stockClient) blame(ctx context.Context, err error) error {
	ctx, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	if errors.Is(k.at.link.Gone(ctx), perftest.ErrGone) {
		return fmt.Errorf("%w (%v)", errServerGone, err)
	}
	return err
}

// follow is measure of write-lat, where the server sends first.
func (k *stockClient) follow(ctx context.Context, r Run) (own outcome, err error) {
	times, n, err := newLatency(k.end, r).follow(ctx)
	if err != nil {
		return own, err
	}
	own.Latency = newLatTimes(times)
	own.Latency.Samples = n
	return own, nil
}

// watch returns a context that ends soon after the server has gone.
func (k *stockClient) watch(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	looking, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := k.at.link.Gone(looking); !errors.Is(err, perftest.ErrGone) {
			return
		}
		select {
		case <-looking.Done():
		case <-time.After(grace):
			cancel(errServerGone)
		}
	}()
	return ctx, func() {
		stop()
		<-done
		cancel(nil)
	}
}

// report is the last run's, in the unit that this end shows.
func (k *stockClient) report() *perftest.Report {
	r := &perftest.Report{Bytes: uint64(k.lastRun.Bytes)}
	if b := k.last.Bandwidth; b != nil {
		unit := float64(mega)
		if k.gbits {
			unit = 1e9 / 8
		}
		r.Iterations = uint64(b.Messages)
		r.Peak, r.Average, r.MsgRate = b.Peak/unit, b.rate(k.lastRun.Bytes)/unit, b.rate(1)/1e6
	}
	return r
}

// finish ends the session as the server expects it.
func (k *stockClient) finish(ctx context.Context) error {
	if k.p.op.echo == echoWrite {
		ctx, cancel := context.WithTimeout(ctx, leaving)
		defer cancel()
		err := k.during(ctx, k.at.link.Gone)
		if ctx.Err() != nil || errors.Is(err, perftest.ErrGone) || errors.Is(err, perftest.ErrTimeout) {
			return nil
		}
		return err
	}
	if k.infinite && k.p.op.recv {
		return nil // such a server never looks at TCP again
	}
	if ctx.Err() != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), lastWords)
		defer cancel()
	}
	return k.during(ctx, func(ctx context.Context) error { return k.talk.End(ctx, k.report()) })
}

// close ends the session, however it went. perftest has no words for why.
func (k *stockClient) close(error) {
	k.hangUp()
	k.at.link.Close()
}

// hangUp gives back everything but the link.
func (k *stockClient) hangUp() {
	for _, c := range k.conns {
		c.Close()
	}
	k.s.Close()
}
