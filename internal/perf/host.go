package perf

import (
	"context"
	"errors"
	"time"

	"github.com/gorxe/gorxe/internal/device"
	"github.com/gorxe/gorxe/internal/exchange"
	"github.com/gorxe/gorxe/internal/session"
	"github.com/gorxe/gorxe/roce"
)

// Service is the name of the service in package exchange.
const Service = "perf"

// runGrace is the part of Host.MaxRun that a run may take in addition.
const runGrace = 8

// ErrRunTooLong means that a server has ended a run that took too long.
var ErrRunTooLong = errors.New("the run took longer than this server permits: " +
	"start 'gorxe perf' as the server for long runs")

// Host serves gorxe clients. Set the fields before using it.
type Host struct {
	Dev    *roce.Device
	GID    device.GIDIndex
	Budget *session.Budget // of memory; nil: each session has only its own limit

	// Limits in time; 0: unlimited.
	Idle   time.Duration // without a packet from the client, also between runs
	MaxRun time.Duration // of one run

	// The callbacks may be nil. Each session's goroutine calls them.

	// Started is called with the test that a client requests. An error refuses the client.
	Started func(p *Params, s *session.Session, peer []exchange.QP) error
	// Finished is called after each run.
	Finished func(p *Params, s *session.Session, row *Row)
	// Ended is called when a session ends that Started has accepted.
	Ended func(err error)
}

// Serve serves one session. It is an exchange.Handler.
func (h *Host) Serve(ctx context.Context, conn *exchange.Conn,
	request *exchange.Message) (err error) {
	var p Params
	if err := request.Decode(&p); err != nil {
		return err
	}
	if err := p.Check(); err != nil {
		return err
	}
	cfg := p.SessionConfig()
	cfg.GID = h.GID
	s, release, err := session.NewWithin(h.Budget, h.Dev, conn.Local().AddrPort().Addr(),
		conn.Remote().AddrPort().Addr(), cfg)
	if err != nil {
		return err
	}
	defer release()
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
	if err := conn.Send(ctx,
		&exchange.Message{Kind: exchange.KindAccept, QPs: s.Local()}); err != nil {
		return err
	}
	ctx, stop := session.WatchIdle(ctx, h.Idle, func() []*roce.QP { return s.QPs })
	defer stop()
	ps := &peerSession{Side: NewSide(s, &p), conn: conn, active: p.Bidirectional}
	for {
		if more, err := h.serveRun(ctx, ps); !more || err != nil {
			return err
		}
	}
}

// serveRun serves one run. It returns false if the client has closed the connection.
func (h *Host) serveRun(ctx context.Context, p *peerSession) (more bool, err error) {
	m, err := p.conn.Await(ctx, exchange.KindRun)
	if errors.Is(err, exchange.ErrGone) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	var r Run
	if err := m.Decode(&r); err != nil {
		return false, err
	}
	if err := r.check(p.Params); err != nil {
		return false, err
	}
	if h.MaxRun > 0 {
		if r.Duration > h.MaxRun {
			return false, refuse("a run of %v: this server permits %v: choose a shorter time (-D), "+
				"or start 'gorxe perf' as the server", r.Duration, h.MaxRun)
		}
		var cancel context.CancelFunc
		ctx, cancel = session.LimitTime(ctx, h.MaxRun+h.MaxRun/runGrace,
			ErrRunTooLong)
		defer cancel()
	}
	if err := p.Prepare(r); err != nil {
		return false, err
	}
	own, peer, err := p.run(ctx, r, func() error {
		return p.conn.Send(ctx, &exchange.Message{Kind: exchange.KindReady})
	})
	if r.Endless && errors.Is(err, exchange.ErrGone) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	row, err := NewRow(p.Params, r, p.Side.Session, own, peer)
	if err == nil && h.Finished != nil {
		h.Finished(p.Params, p.Side.Session, row)
	}
	return err == nil, err
}
