package rping

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/gorxe/gorxe/internal/session"
	"github.com/gorxe/gorxe/roce"
)

const (
	// maxSessions bounds the clients served at a time; further ones are refused.
	maxSessions = 64
	// maxMeetings bounds those that have asked and not come yet. Whoever may write any address can ask in vain, so they are
	// more, and their time is short: a client whose answer was lost on the way has asked again by then.
	maxMeetings = 512
	meetingTime = 5 * time.Second
	// quietTime is how long a client may be silent before this end looks whether it lives.
	quietTime = 20 * time.Second
)

// Server answers rping clients.
type Server struct {
	Dev *roce.Device
	Log func(peer netip.AddrPort, err error) // how a session ended, nil if well; may be nil

	patience time.Duration // 0: meetingTime
	quiet    time.Duration // 0: quietTime
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
	meetings, sessions := session.NewPlaces(maxMeetings), session.NewPlaces(maxSessions)
	for {
		r, err := l.Accept(ctx)
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, roce.ErrClosed) {
				return nil
			}
			return err
		}
		done, ok := meetings.Take(r.RemoteAddr().Addr())
		if !ok {
			_ = r.Reject(tooMany)
			continue
		}
		wg.Go(func() {
			defer done()
			err := s.session(ctx, r, sessions, done)
			if s.Log != nil && ctx.Err() == nil {
				s.Log(r.RemoteAddr(), err)
			}
		})
	}
}

var (
	tooMany    = []byte("too many sessions")
	errTooMany = errors.New("too many sessions: this client's was refused")
)

// meet makes the connection, if there is a place for the client.
func (s *Server) meet(ctx context.Context, r *roce.Request, e *end, places *session.Places) (c *roce.Conn, leave func(), err error) {
	peer := r.RemoteAddr().Addr()
	leave, ok := places.Take(peer)
	if !ok {
		return nil, nil, errors.Join(errTooMany, r.Reject(tooMany))
	}
	leave() // not before the client has come
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(s.patience, meetingTime))
	defer cancel()
	if c, err = r.Accept(ctx, e.qp, roce.AcceptOptions{}); err != nil {
		return nil, nil, err
	}
	if leave, ok = places.Take(peer); !ok {
		return nil, nil, errors.Join(errTooMany, c.Close())
	}
	return c, leave, nil
}

// session serves one client to its end. met is called when it has come.
func (s *Server) session(ctx context.Context, r *roce.Request, places *session.Places, met func()) error {
	e, err := newEnd(s.Dev, MaxSize)
	if err != nil {
		return errors.Join(err, r.Reject(nil))
	}
	defer e.close()
	e.quiet = cmp.Or(s.quiet, quietTime)
	c, leave, err := s.meet(ctx, r, e, places)
	if err != nil {
		return err
	}
	met()
	defer leave()
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
