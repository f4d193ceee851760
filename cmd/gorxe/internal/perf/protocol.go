package perf

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/device"
	"github.com/gorxe/gorxe/internal/exchange"
	"github.com/gorxe/gorxe/internal/perftest"
	"github.com/gorxe/gorxe/internal/session"
	"github.com/gorxe/gorxe/roce"
)

// Service is the name that the client asks for.
const Service = "perf"

// outcome is what an end tells the other at the end of a run: what it measured, if it measured.
type outcome struct {
	Bandwidth *result   `json:"bandwidth,omitempty"`
	Latency   *latTimes `json:"latency,omitempty"`
}

// pair is a session with its connection, from either end.
type pair struct {
	*end
	conn   *exchange.Conn
	active bool // this end measures
}

// watch waits for the peer's last message of a run, and makes it known to the loops.
type watch struct {
	done chan struct{} // closed when the message is there
	peer outcome       // valid after done
}

// begin starts a run's watch. The returned context ends with its cause if the peer fails or goes.
func (p *pair) begin(ctx context.Context) (context.Context, context.CancelCauseFunc, *watch) {
	ctx, cancel := context.WithCancelCause(ctx)
	w := &watch{done: make(chan struct{})}
	p.peerDone.Store(false)
	go func() {
		m, err := p.conn.Await(ctx, exchange.KindDone)
		if err == nil {
			err = m.Decode(&w.peer)
		}
		if err != nil {
			cancel(err)
			return
		}
		p.peerDone.Store(true)
		close(w.done)
	}()
	return ctx, cancel, w
}

// run is one run, from the moment that both are ready. It returns what both ends measured.
func (p *pair) run(parent context.Context, r Run, start func() error) (own, peer outcome, err error) {
	ctx, cancel, w := p.begin(parent)
	defer cancel(nil)
	if err = start(); err != nil {
		return own, peer, err
	}
	if p.active {
		if own, err = p.measure(ctx, r); err == nil {
			err = p.done(ctx, own)
		}
		if err != nil {
			return own, peer, cause(ctx, err)
		}
	}
	if err = p.attend(ctx, r, w); err != nil {
		return own, peer, cause(ctx, err)
	}
	if !p.active {
		err = p.done(ctx, own)
	}
	return own, w.peer, err
}

// cause prefers what ended the run from outside, which is why a work request or a message then failed, to the failure.
func cause(ctx context.Context, err error) error {
	if c := context.Cause(ctx); c != nil && !errors.Is(c, context.Canceled) {
		return c
	}
	return err
}

func (p *pair) done(ctx context.Context, own outcome) error {
	return p.conn.Send(ctx, &exchange.Message{Kind: exchange.KindDone, Params: exchange.Encode(own)})
}

// measure is one run of an end that measures.
func (e *end) measure(ctx context.Context, r Run) (own outcome, err error) {
	if e.p.op.latency {
		times, err := newLatency(e, r).measure(ctx)
		if err != nil {
			return own, err
		}
		own.Latency = newLatTimes(times)
		return own, nil
	}
	res, err := newBandwidth(e, r).measure(ctx)
	own.Bandwidth = &res
	return own, err
}

// attend answers the peer until it is done.
func (p *pair) attend(ctx context.Context, r Run, w *watch) error {
	if !p.active && p.p.op.echo != echoNone {
		return newLatency(p.end, r).answer(ctx)
	}
	if p.active && !p.p.Bidirectional {
		var cancel context.CancelFunc
		if ctx, cancel = context.WithTimeoutCause(ctx, exchange.Timeout, exchange.ErrTimeout); cancel != nil {
			defer cancel()
		}
	}
	return p.serve(ctx, w.done)
}

// prepare makes this end ready for a run, before the peer may start it.
func (e *end) prepare(r Run) error {
	if e.p.op.echo != echoNone {
		newLatency(e, r).prepare()
	}
	return e.postRecvs()
}

// Host is what serves clients: "gorxe perf OP" without a host, or "gorxe up".
type Host struct {
	Dev    *roce.Device
	Flags  *device.Flags
	Budget *session.Budget // of memory; nil: no limit but each session's own

	// For perftest's clients, which do not say what they want: the server's user may have. Want is nil where anything
	// goes, Size 0 where no size was given; Gbits is the unit of reports, MB/sec otherwise.
	Want  *Params
	Size  int
	Gbits bool

	quiet   time.Duration // of a peer by rdma_cm, until it is probed; 0: mailQuiet
	meeting time.Duration // how long such a peer may take to come; 0: cmMeeting

	// Started hears what a client wants; an error refuses it. Finished hears of each run, and Ended how a session went that
	// Started took. They may be nil, and are called by each session's goroutine.
	Started  func(p *Params, s *session.Session, peer []exchange.QP) error
	Finished func(p *Params, s *session.Session, row *Row)
	Ended    func(err error)
}

// Serve serves one client's session. It is an exchange.Handler.
func (h *Host) Serve(ctx context.Context, conn *exchange.Conn, request *exchange.Message) (err error) {
	var p Params
	if err := request.Decode(&p); err != nil {
		return err
	}
	if err := p.check(); err != nil {
		return err
	}
	cfg := p.session()
	cfg.Flags = h.Flags
	if h.Budget != nil {
		release, err := h.Budget.Take(cfg.Memory())
		if err != nil {
			return err
		}
		defer release()
	}
	s, err := session.New(h.Dev, conn.Local().AddrPort().Addr(), cfg)
	if err != nil {
		return err
	}
	defer s.Close()
	if h.Started != nil {
		if err := h.Started(&p, s, request.QPs); err != nil {
			return err
		}
	}
	if h.Ended != nil {
		defer func() { h.Ended(err) }()
	}
	if err := s.Connect(ctx, request.QPs); err != nil {
		return err
	}
	if err := conn.Send(ctx, &exchange.Message{Kind: exchange.KindAccept, QPs: s.Local()}); err != nil {
		return err
	}
	return h.runs(ctx, &pair{end: newEnd(s, &p), conn: conn, active: p.Bidirectional})
}

// runs serves runs until the client closes, which is how a session ends well.
func (h *Host) runs(ctx context.Context, p *pair) error {
	for {
		m, err := p.conn.Await(ctx, exchange.KindRun)
		if errors.Is(err, exchange.ErrGone) {
			return nil
		}
		if err != nil {
			return err
		}
		var r Run
		if err := m.Decode(&r); err != nil {
			return err
		}
		if err := r.check(p.p); err != nil {
			return err
		}
		if err := p.prepare(r); err != nil {
			return err
		}
		own, peer, err := p.run(ctx, r, func() error {
			return p.conn.Send(ctx, &exchange.Message{Kind: exchange.KindReady})
		})
		if r.Endless && errors.Is(err, exchange.ErrGone) {
			return nil
		}
		if err != nil {
			return err
		}
		if row, err := newRow(p.p, r, p.s, own, peer); err != nil {
			return err
		} else if h.Finished != nil {
			h.Finished(p.p, p.s, row)
		}
	}
}

// client is the client's end of a session, with a server of either kind.
type client interface {
	session() *session.Session
	once(ctx context.Context, r Run) (*Row, error) // one run
	finish(ctx context.Context) error              // a good end, after the last run
	close(err error)                               // always; err, if there is one, is what ended the session
}

// dial opens the client's end of a session.
func dial(ctx context.Context, dev *roce.Device, flags *device.Flags, addr string, p *Params, o stockOptions) (client, error) {
	conn, err := exchange.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	link := perftest.NewLink(conn.Stream())
	talk, err := greet(ctx, conn, link)
	if err != nil {
		conn.Close()
		return nil, err
	}
	if !talk.Peer.Gorxe {
		at := meeting{link: link, local: conn.Local().AddrPort().Addr()}
		k, err := openStock(ctx, dev, flags, at, talk, p, o)
		if err != nil {
			conn.Close()
			return nil, err
		}
		return k, nil
	}
	cfg := p.session()
	cfg.Flags = flags
	s, err := session.New(dev, conn.Local().AddrPort().Addr(), cfg)
	if err != nil {
		conn.Close()
		return nil, err
	}
	pr := &pair{end: newEnd(s, p), conn: conn, active: true}
	if err := pr.open(ctx); err != nil {
		pr.close(err)
		return nil, err
	}
	return pr, nil
}

// greet tells that a gorxe is here and hears who is there.
func greet(ctx context.Context, conn *exchange.Conn, link *perftest.Link) (*perftest.Client, error) {
	if err := perftest.Announce(ctx, link, true); err != nil {
		return nil, err
	}
	switch first, err := conn.PeekByte(ctx, perftest.Timeout); {
	case errors.Is(err, exchange.ErrTimeout):
		return nil, perftest.ErrTimeout
	case err == nil && first == '{': // a gorxe that has no time for this client, and says so before anything else
		_, err := conn.Receive(ctx)
		return nil, err
	}
	return perftest.Hear(ctx, link)
}

func (p *pair) session() *session.Session { return p.s }

// finish has nothing to say: the server sees the end by TCP.
func (p *pair) finish(context.Context) error { return nil }

func (p *pair) open(ctx context.Context) error {
	err := p.conn.Send(ctx, &exchange.Message{Kind: exchange.KindRequest, Service: Service, Params: exchange.Encode(p.p), QPs: p.s.Local()})
	if err != nil {
		return err
	}
	m, err := p.conn.Receive(ctx, exchange.KindAccept)
	if err != nil {
		return err
	}
	return p.s.Connect(ctx, m.QPs)
}

// close ends the client's session; err, if it is not the peer's own, is told to it.
func (p *pair) close(err error) {
	if err != nil && !errors.Is(err, exchange.ErrRemote) && !errors.Is(err, exchange.ErrGone) {
		if errors.Is(err, cli.ErrInterrupted) {
			err = errors.New("the client was interrupted")
		}
		p.conn.Refuse(err)
	}
	p.conn.Close()
	p.s.Close()
}

// once is one run of the client's.
func (p *pair) once(ctx context.Context, r Run) (*Row, error) {
	if err := p.prepare(r); err != nil {
		return nil, err
	}
	// The session's QPs answer while this end waits: only the bidirectional server starts before the client, and
	// its first packets are answered, or retransmitted, as soon as the client's loop runs.
	if err := p.conn.Send(ctx, &exchange.Message{Kind: exchange.KindRun, Params: exchange.Encode(r)}); err != nil {
		return nil, err
	}
	if _, err := p.conn.Receive(ctx, exchange.KindReady); err != nil {
		return nil, err
	}
	own, peer, err := p.run(ctx, r, func() error { return nil })
	if err != nil {
		return nil, err
	}
	return newRow(p.p, r, p.s, own, peer)
}

// errOutcome: the peer's last message lacks what this test needs.
var errOutcome = fmt.Errorf("%w: its result is missing", exchange.ErrProtocol)
