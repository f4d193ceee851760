package stock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gorxe/gorxe/internal/device"
	"github.com/gorxe/gorxe/internal/perf"
	"github.com/gorxe/gorxe/internal/perftest"
	"github.com/gorxe/gorxe/internal/session"
	"github.com/gorxe/gorxe/roce"
)

const (
	// closeGrace is the time between the end of the peer's connection and the end of the local run.
	// A server closes its connection after its last message, perhaps before the client has seen
	// that. A client that was stopped for longer still handles all messages first.
	closeGrace = 2 * time.Second
	// leaveTime is the time that a write-lat server gets to close the connection by itself. It
	// covers perftest's retransmissions, if the acknowledgment of its last message was lost.
	leaveTime = 500 * time.Millisecond
	// finishTime is the time for the last messages of an interrupted client.
	finishTime = 3 * time.Second
)

// ErrServerGone means that the server closed the connection during a run, or that its user gave it
// other flags.
var ErrServerGone = fmt.Errorf("%w during the run: start both sides with the same test and flags "+
	"(-s, -n, -D, -q, -a)", perftest.ErrGone)

// client is a perf.Client of a perftest server.
type client struct {
	*perf.Side
	Options
	peer  peer
	msgs  *perftest.Client
	conns []*roce.Conn // by rdma_cm

	started bool
	last    perf.Outcome // of the last run
	lastRun perf.Run
}

// newClient starts a session after the hellos. It returns when both sides are connected and ready.
// The client owns the link; after an error the caller closes it.
func newClient(
	ctx context.Context, dev *roce.Device, gid device.GIDIndex, server peer, msgs *perftest.Client,
	p *perf.Params, o Options,
) (*client, error) {
	t, err := testOf(p)
	if err != nil {
		return nil, err
	}
	t.All, t.Duration = o.All, o.Duration
	cfg := p.SessionConfig()
	cfg.GID, cfg.Bytes, cfg.AckFirst = gid, max(cfg.Bytes, pageBytes), true
	s, err := session.New(dev, server.local, cfg)
	if err != nil {
		return nil, err
	}
	c := &client{Side: perf.NewSide(s, p), Options: o, peer: server, msgs: msgs}
	if err := c.connect(ctx, t); err != nil {
		c.release()
		return nil, err
	}
	return c, nil
}

func (c *client) connect(ctx context.Context, t perftest.Test) error {
	s := c.Side.Session
	mtu, err := offeredMTU(s, c.Params.MTU)
	if err != nil {
		return err
	}
	if mtu, err = c.msgs.AgreeMTU(ctx, mtu); err != nil {
		return err
	}
	if c.peer.byCM() {
		if mtu, err = c.dialQPs(ctx); err != nil {
			return err
		}
	}
	own := make([]perftest.Key, c.Params.QPs)
	for i := range own {
		own[i] = keyOf(s, i)
		if t.Verb == perftest.Write || t.Verb == perftest.Send {
			own[i].OutReads = 1 // like perftest; a gorxe server recognizes the test by it
		}
	}
	keys, err := c.msgs.ExchangeKeys(ctx, t, own)
	if err != nil {
		return err
	}
	for i := range keys {
		if !c.peer.byCM() {
			if err := connect(ctx, s, i, keys[i], mtu); err != nil {
				return err
			}
		}
		s.Peer = append(s.Peer, peerQP(keys[i], mtu, c.Params.Bytes))
	}
	return c.during(ctx, c.msgs.Start)
}

// Session implements perf.Client.
func (c *client) Session() *session.Session { return c.Side.Session }

// during calls exchange, which exchanges messages with the server, while the local queue pairs
// serve the peer.
func (c *client) during(ctx context.Context, exchange func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan struct{})
	c.PeerDone.Store(false)
	var failed error
	go func() {
		failed = exchange(ctx)
		c.PeerDone.Store(true)
		close(done)
	}()
	err := c.AwaitPeer(ctx, done)
	if err != nil {
		cancel(err)
	}
	<-done
	if err == nil {
		err = failed
	}
	return err
}

// Run implements perf.Client.
func (c *client) Run(ctx context.Context, r perf.Run) (*perf.Row, error) {
	// A write-lat server sends first, perhaps before this call. Prepare would clear its first
	// message. The client of a bandwidth test posts no receives: a server recognizes the test by
	// it.
	if c.Params.Operation.Reply == perf.ReplySend {
		if err := c.Prepare(r); err != nil {
			return nil, err
		}
	}
	if !c.Infinite || !c.started {
		if err := c.during(ctx, c.msgs.BeforeRun); err != nil {
			return nil, err
		}
	}
	c.started = true
	own, err := c.measure(ctx, r)
	if err != nil {
		return nil, err
	}
	c.last, c.lastRun = own, r
	if !c.Infinite {
		err = c.during(ctx, func(ctx context.Context) error {
			_, err := c.msgs.AfterRun(ctx, c.report())
			return err
		})
	}
	if err != nil {
		return nil, err
	}
	return perf.NewRow(c.Params, r, c.Side.Session, own, perf.Outcome{})
}

// measure measures one run. It also ends if the server closes the connection.
func (c *client) measure(parent context.Context, r perf.Run) (own perf.Outcome, err error) {
	ctx, stop := c.watch(parent)
	defer func() {
		stop()
		if err != nil && parent.Err() == nil && !errors.Is(err, ErrServerGone) {
			err = c.explain(parent, err)
		}
	}()
	c.PeerDone.Store(false)
	if c.Params.Operation.Reply == perf.ReplyWrite {
		own, err = c.MeasureReplies(ctx, r)
	} else {
		own, err = c.Measure(ctx, r)
	}
	if err != nil {
		err = perf.Cause(ctx, err)
	}
	return own, err
}

// explain returns ErrServerGone if the server closes the connection soon after a run has failed
// with err. A server destroys its queue pairs before it closes the connection.
func (c *client) explain(ctx context.Context, err error) error {
	ctx, cancel := context.WithTimeout(ctx, closeGrace)
	defer cancel()
	if errors.Is(c.peer.link.WaitClosed(ctx), perftest.ErrGone) {
		return fmt.Errorf("%w (%v)", ErrServerGone, err)
	}
	return err
}

// watch returns a context that ends closeGrace after the server has closed the connection.
func (c *client) watch(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	watching, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := c.peer.link.WaitClosed(watching); !errors.Is(err, perftest.ErrGone) {
			return
		}
		select {
		case <-watching.Done():
		case <-time.After(closeGrace):
			cancel(ErrServerGone)
		}
	}()
	return ctx, func() {
		stop()
		<-done
		cancel(nil)
	}
}

// report returns the report of the last run, in the unit that the local side shows.
func (c *client) report() *perftest.Report {
	r := &perftest.Report{Bytes: uint64(c.lastRun.Bytes)}
	if b := c.last.Bandwidth; b != nil {
		unit := float64(perf.MB)
		if c.Gbits {
			unit = perf.Gb
		}
		r.Iterations = uint64(b.Messages)
		r.Peak, r.Average, r.MsgRate = b.Peak/unit, b.Rate(c.lastRun.Bytes)/unit, b.Rate(1)/1e6
	}
	return r
}

// Finish implements perf.Client.
func (c *client) Finish(ctx context.Context) error {
	if c.Params.Operation.Reply == perf.ReplyWrite {
		ctx, cancel := context.WithTimeout(ctx, leaveTime)
		defer cancel()
		err := c.during(ctx, c.peer.link.WaitClosed)
		if ctx.Err() != nil || errors.Is(err, perftest.ErrGone) ||
			errors.Is(err, perftest.ErrTimeout) {
			return nil
		}
		return err
	}
	if c.Infinite && c.Params.Operation.Recv {
		return nil // such a server does not read from its connection anymore
	}
	if ctx.Err() != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), finishTime)
		defer cancel()
	}
	return c.during(ctx, func(ctx context.Context) error { return c.msgs.End(ctx, c.report()) })
}

// Close implements perf.Client. perftest's protocol has no message for an error.
func (c *client) Close(error) {
	c.release()
	c.peer.link.Close()
}

// release releases everything but the link.
func (c *client) release() {
	for _, conn := range c.conns {
		conn.Close()
	}
	c.Side.Session.Close()
}
