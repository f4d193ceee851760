package rping

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/gorxe/gorxe/internal/guard"
	"github.com/gorxe/gorxe/internal/session"
	"github.com/gorxe/gorxe/roce"
)

const (
	// maxSessions is the number of clients that are served at a time.
	maxSessions = 64
	// maxConnecting is the number of connections that are being established. It is larger, because
	// anyone can send requests with a forged address and never complete them.
	maxConnecting = 512
	// connectTime is the time limit for establishing a connection. It is short for the same reason.
	// A client whose answer was lost repeats its request earlier.
	connectTime = 5 * time.Second
	// quietTime is the time after which a silent client is probed.
	quietTime = 20 * time.Second
)

// errTooMany means that a client was refused because there are too many sessions.
var errTooMany = errors.New("refused the client: too many sessions")

// tooMany is the private data of a rejection.
var tooMany = []byte("too many sessions")

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
	return s.Dev.Listen(addr, roce.ListenOptions{Backlog: 2 * maxConnecting})
}

// Serve answers clients until ctx ends or the listener is closed. It returns when all sessions have
// ended.
func (s *Server) Serve(ctx context.Context, l *roce.Listener) error {
	connecting, sessions := guard.NewLimiter(maxConnecting), guard.NewLimiter(maxSessions)
	return session.AcceptLoop(ctx, l, s.Guard, func(r *roce.Request) func(context.Context) {
		done, ok := connecting.Take(r.RemoteAddr().Addr())
		if !ok {
			s.Guard.Count(guard.Busy)
			_ = r.Reject(tooMany)
			return nil
		}
		return func(ctx context.Context) {
			defer done()
			err := s.session(ctx, r, sessions, done)
			if s.Log != nil && ctx.Err() == nil {
				s.Log(r.RemoteAddr(), err)
			}
		}
	})
}

// accept establishes the connection if the client gets a slot.
func (s *Server) accept(
	ctx context.Context, r *roce.Request, c *side, slots *guard.Limiter,
) (release func(), err error) {
	peer := r.RemoteAddr().Addr()
	release, ok := slots.Take(peer)
	if !ok {
		return nil, errors.Join(errTooMany, r.Reject(tooMany))
	}
	release() // a client does not hold a slot until it is connected
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(s.connectTime, connectTime))
	defer cancel()
	if err = c.Accept(ctx, r, roce.AcceptOptions{}); err != nil {
		return nil, err
	}
	if release, ok = slots.Take(peer); !ok {
		return nil, errTooMany // the caller closes the connection
	}
	return release, nil
}

// session serves one client. It calls connected when the connection is established.
func (s *Server) session(ctx context.Context, r *roce.Request, slots *guard.Limiter,
	connected func()) error {
	c, err := newSide(s.Dev, MaxSize, cmp.Or(s.quietTime, quietTime))
	if err != nil {
		return errors.Join(err, r.Reject(nil))
	}
	defer c.Close()
	release, err := s.accept(ctx, r, c, slots)
	if err != nil {
		return err
	}
	connected()
	defer release()
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
