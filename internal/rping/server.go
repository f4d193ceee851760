package rping

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/gorxe/gorxe/internal/cmconn"
	"github.com/gorxe/gorxe/internal/guard"
	"github.com/gorxe/gorxe/internal/session"
	"github.com/gorxe/gorxe/roce"
)

const (
	// maxSessions is the number of clients that are served at a time.
	maxSessions = 64
	// quietTime is the time after which a silent client is probed.
	quietTime = 20 * time.Second
)

// Server answers rping clients.
type Server struct {
	Dev   *roce.Device
	Guard *guard.Guard  // decides which clients are served; nil: all
	Idle  time.Duration // longest time between two pings of a client; 0: unlimited
	// Log, if set, is called when a session ends. err is nil if the client disconnected.
	Log func(peer netip.AddrPort, err error)

	connectTime time.Duration // 0: the constant
	quietTime   time.Duration // 0: the constant
}

// Listen listens on an RDMA port. Half of the backlog, a prefix's share, is as large as the number
// of connections that Serve establishes at a time.
func (s *Server) Listen(port int) (*roce.Listener, error) {
	addr := netip.AddrPortFrom(netip.Addr{}, uint16(port))
	return s.Dev.Listen(addr, roce.ListenOptions{Backlog: 2 * session.MaxConnecting})
}

// Serve answers clients until ctx ends or the listener is closed. It returns when all sessions have
// ended.
func (s *Server) Serve(ctx context.Context, l *roce.Listener) error {
	a := session.Acceptor[*side]{
		Guard: s.Guard, Sessions: maxSessions, ConnectTime: s.connectTime,
		Open: s.open,
		Serve: func(ctx context.Context, _ *roce.Request, c *side) error {
			return s.serve(ctx, c)
		},
		Ended: func(peer netip.AddrPort, err error) {
			if s.Log != nil && ctx.Err() == nil {
				s.Log(peer, err)
			}
		},
	}
	return a.Run(ctx, l)
}

// open establishes the connection to a client.
func (s *Server) open(ctx context.Context, r *roce.Request) (*side, error) {
	c, err := newSide(s.Dev, nil, MaxSize, cmp.Or(s.quietTime, quietTime))
	if err != nil {
		return nil, errors.Join(err, r.Reject(nil))
	}
	if err := c.Accept(ctx, r, roce.AcceptOptions{}); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// serve serves one client.
func (s *Server) serve(ctx context.Context, c *side) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-c.CM().Done():
			if !errors.Is(c.CM().Err(), roce.ErrConnLost) { // a failed completion tells more
				cancel()
			}
		case <-ctx.Done():
		}
	}()
	for {
		err := c.answer(ctx, s.Idle)
		if failed := new(cmconn.StatusError); errors.As(err, &failed) &&
			failed.Status == roce.WRFlushErr {
			// The connection has ended. The flushed receive may be seen before its end.
			select {
			case <-c.CM().Done():
			case <-ctx.Done():
			}
		}
		switch {
		case errors.Is(c.CM().Err(), roce.ErrDisconnected):
			return nil
		case err != nil:
			return err
		}
	}
}

// answer answers one ping. It returns session.ErrIdle if the ping does not begin within the time
// idle.
func (s *side) answer(ctx context.Context, idle time.Duration) error {
	source, err := s.receiveWithin(ctx, idle)
	if err != nil {
		return err
	}
	if source.size > MaxSize {
		return fmt.Errorf("%w: its text has %d bytes, at most %d are allowed", errPeer, source.size,
			MaxSize)
	}
	text := []roce.SGE{s.MR.SGE(s.Memory(), int(source.size))}
	if err := s.do(ctx, roce.SendWR{Op: roce.OpRead, SGEs: text, RemoteAddr: source.addr,
		RKey: source.key}); err != nil {
		return err
	}
	if err := s.announce(ctx, buffer{}); err != nil {
		return err
	}
	sink, err := s.receive(ctx)
	if err != nil {
		return err
	}
	text[0].Length = min(source.size, sink.size)
	if err := s.do(ctx, roce.SendWR{Op: roce.OpWrite, SGEs: text, RemoteAddr: sink.addr,
		RKey: sink.key}); err != nil {
		return err
	}
	return s.announce(ctx, buffer{})
}
