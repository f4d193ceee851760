package rping

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"github.com/gorxe/gorxe/roce"
)

// maxSessions bounds the clients served at a time; further ones are refused.
const maxSessions = 64

// Server answers rping clients.
type Server struct {
	Dev *roce.Device
	Log func(peer netip.AddrPort, err error) // how a session ended, nil if well; may be nil
}

// Listen takes the port; Serve serves it.
func (s *Server) Listen(port int) (*roce.Listener, error) {
	return s.Dev.Listen(netip.AddrPortFrom(netip.Addr{}, uint16(port)), roce.ListenOptions{Backlog: maxSessions})
}

// Serve answers clients until ctx is done or the listener is closed, and returns when all sessions have ended.
func (s *Server) Serve(ctx context.Context, l *roce.Listener) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	places := make(chan struct{}, maxSessions)
	for {
		r, err := l.Accept(ctx)
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, roce.ErrClosed) {
				return nil
			}
			return err
		}
		select {
		case places <- struct{}{}:
		default:
			_ = r.Reject([]byte("too many sessions"))
			continue
		}
		wg.Go(func() {
			err := s.session(ctx, r)
			if s.Log != nil && ctx.Err() == nil {
				s.Log(r.RemoteAddr(), err)
			}
			<-places
		})
	}
}

// session serves one client to its end.
func (s *Server) session(ctx context.Context, r *roce.Request) error {
	e, err := newEnd(s.Dev, MaxSize)
	if err != nil {
		return errors.Join(err, r.Reject(nil))
	}
	defer e.close()
	c, err := r.Accept(ctx, e.qp, roce.AcceptOptions{})
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-c.Done():
			if !errors.Is(c.Err(), roce.ErrConnLost) { // else a completion says why
				cancel()
			}
		case <-ctx.Done():
		}
	}()
	for {
		err := s.round(ctx, e)
		switch {
		case errors.Is(c.Err(), roce.ErrDisconnected):
			return nil // the client has had enough
		case err != nil:
			return err
		}
	}
}

// round answers one ping: source, go-ahead, sink, done.
func (s *Server) round(ctx context.Context, e *end) error {
	source, err := e.hear(ctx)
	if err != nil {
		return err
	}
	if source.size > MaxSize {
		return fmt.Errorf("%w: it offers a text of %d bytes, the most is %d", errPeer, source.size, MaxSize)
	}
	text := []roce.SGE{e.mr.SGE(textOff, int(source.size))}
	if err := e.do(ctx, roce.SendWR{Op: roce.OpRead, SGEs: text, RemoteAddr: source.addr, RKey: source.key}); err != nil {
		return err
	}
	if err := e.say(ctx, buffer{}); err != nil {
		return err
	}
	sink, err := e.hear(ctx)
	if err != nil {
		return err
	}
	text[0].Length = min(source.size, sink.size)
	if err := e.do(ctx, roce.SendWR{Op: roce.OpWrite, SGEs: text, RemoteAddr: sink.addr, RKey: sink.key}); err != nil {
		return err
	}
	return e.say(ctx, buffer{})
}
