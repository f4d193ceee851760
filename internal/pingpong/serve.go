package pingpong

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"

	"github.com/gorxe/gorxe/internal/guard"
)

// maxWaiting is the number of connections that a server keeps while it waits for their addresses
// or for the end of another session. One prefix gets at most half of them.
const maxWaiting = 32

// errCrowded is the error of a connection that is closed at once.
var errCrowded = errors.New("too many connections have not sent the address of a queue pair")

// Serve accepts connections until session returns without an error that wraps ErrExchange, and
// returns that result. It calls session for one connection at a time, when its client has sent the
// addresses of its queue pairs, as many as a client of the given kind sends. So connections that
// send nothing do not block clients. Connections of other programs, and of peers that g does not
// permit, are passed to rejected with the error and do not end the wait. session must close its
// connection. Serve closes l.
func Serve(
	ctx context.Context, l net.Listener, kind Kind, g *guard.Guard,
	session func(net.Conn) error, rejected guard.Log,
) error {
	c := Config{Kind: kind}
	ctx, cancel := context.WithCancel(ctx)
	s := &lobby{lines: c.lines(), guard: g, rejected: rejected, clients: make(chan net.Conn),
		waiting: guard.NewLimiter(maxWaiting)}
	failed := make(chan error, 1)
	s.wg.Go(func() { failed <- s.accept(ctx, l) })
	defer s.wg.Wait()
	defer l.Close()
	defer cancel()
	for {
		select {
		case err := <-failed:
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		case conn := <-s.clients:
			peer := remoteAddr(conn)
			err := session(conn)
			if !errors.As(err, new(notAClient)) {
				return err
			}
			s.reject(ctx, peer, err)
		}
	}
}

// lobby holds the connections that wait for a session.
type lobby struct {
	lines    int
	guard    *guard.Guard
	mu       sync.Mutex // serializes calls of rejected
	rejected guard.Log
	clients  chan net.Conn
	waiting  *guard.Limiter
	wg       sync.WaitGroup
}

// accept accepts connections until l is closed.
func (s *lobby) accept(ctx context.Context, l net.Listener) error {
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		peer := remoteAddr(conn)
		leave, err := s.admit(peer.Addr())
		if err != nil {
			s.reject(ctx, peer, err)
			conn.Close()
			continue
		}
		s.wg.Go(func() {
			defer leave()
			s.wait(ctx, conn, peer)
		})
	}
}

// admit lets a connection wait until the caller calls leave, or returns why it may not.
func (s *lobby) admit(peer netip.Addr) (leave func(), err error) {
	if !s.guard.Permits(peer) {
		return nil, guard.ErrRefused
	}
	leave, ok := s.waiting.Take(peer)
	if !ok {
		s.guard.Count(guard.Lobby)
		return nil, errCrowded
	}
	return leave, nil
}

// wait waits for the addresses of a client and then for its session.
func (s *lobby) wait(ctx context.Context, conn net.Conn, peer netip.AddrPort) {
	var got bytes.Buffer
	err := withDeadline(ctx, conn, func() error {
		_, err := readLines(io.TeeReader(conn, &got), s.lines)
		return err
	})
	if err != nil {
		s.reject(ctx, peer, err)
		conn.Close()
		return
	}
	select {
	case s.clients <- &client{conn, io.MultiReader(&got, conn)}:
	case <-ctx.Done():
		conn.Close()
	}
}

// reject reports a connection that gets no session.
func (s *lobby) reject(ctx context.Context, peer netip.AddrPort, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ctx.Err() == nil {
		s.rejected(peer, err)
	}
}

// client is the connection of a client whose addresses were read.
type client struct {
	net.Conn
	r io.Reader // the addresses, then the connection
}

func (c *client) Read(b []byte) (int, error) { return c.r.Read(b) }
