package oob

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// What a Server carries at a time, unless told otherwise.
const (
	DefaultSessions = 32 // from all peers
	DefaultPerPeer  = 8  // from one address
)

// Handler serves one session, from its request on. What it returns is told to
// the peer and to the server's log; the connection is closed for it.
type Handler func(ctx context.Context, c *Conn, request *Message) error

// Server accepts sessions and gives each to the handler of the service that it
// asks for. The fields are set before Serve.
type Server struct {
	Services map[string]Handler
	Sessions int // at a time; 0: DefaultSessions
	PerPeer  int // at a time from one address; 0: DefaultPerPeer
	// Greet, if set, meets the peer before it asks for a service, and may serve
	// it in another language than gorxe's: then served is true, and err is how that went.
	Greet func(ctx context.Context, c *Conn) (served bool, err error)
	// Log, if set, hears about each session that failed. It may be called by
	// several goroutines at a time.
	Log func(peer net.Addr, err error)

	lobby lobby
	mu    sync.Mutex
	total int
	peers map[netip.Addr]int
	drops [numDrops]int
}

// drop is why a connection gets no session.
type drop uint8

const (
	crowded drop = iota // it was silent for longest, and too many were
	busy                // there is no place
	numDrops
)

// Listen listens on a TCP port, of one interface only if iface is not empty:
// so two interfaces of one host can each have a server on the same port.
func Listen(ctx context.Context, iface string, port int) (net.Listener, error) {
	lc := net.ListenConfig{Control: func(_, _ string, rc syscall.RawConn) error {
		if iface == "" {
			return nil
		}
		var err error
		if cerr := rc.Control(func(fd uintptr) { err = unix.BindToDevice(int(fd), iface) }); cerr != nil {
			return cerr
		}
		return err
	}}
	ln, err := lc.Listen(ctx, "tcp", ":"+strconv.Itoa(port))
	if errors.Is(err, unix.EADDRINUSE) {
		return nil, fmt.Errorf("TCP port %d is taken: is another gorxe running here? stop it, or choose another port with --port on both ends", port)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot listen on TCP port %d: %w", port, dialReason(err))
	}
	return ln, nil
}

// Serve accepts sessions until ctx ends, closes ln and returns when the last
// session has ended. It returns nil if ctx ended it.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx) // an accept error ends the sessions too
	defer cancel()
	stop := context.AfterFunc(ctx, func() { ln.Close() })
	defer stop()
	defer ln.Close()
	for {
		nc, err := ln.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				nc.Close()
			}
			return nil
		case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ECONNABORTED):
			time.Sleep(50 * time.Millisecond) // passes when sessions end
			continue
		case err != nil:
			return fmt.Errorf("cannot accept connections: %w", dialReason(err))
		}
		c := NewConn(nc)
		s.lobby.enter(c)
		wg.Go(func() { s.session(ctx, c) })
	}
}

// session runs one session, whatever happens in it.
func (s *Server) session(ctx context.Context, c *Conn) {
	defer c.Close()
	evicted, err := s.lobby.wait(ctx, c)
	if evicted {
		s.dropped(ctx, c, crowded, fmt.Errorf("%d connections say nothing: closed the oldest", maxSilent))
		return
	}
	foreign := false
	if err == nil {
		if err = s.admit(c); err != nil {
			c.Refuse(err)
			s.dropped(ctx, c, busy, err)
			return
		}
		foreign, err = s.dispatch(ctx, c)
		s.leave(c)
	}
	if err == nil {
		return
	}
	if !foreign && !errors.Is(err, ErrRemote) && !errors.Is(err, ErrGone) {
		c.Refuse(err)
	}
	s.log(ctx, c, err)
}

func (s *Server) log(ctx context.Context, c *Conn, err error) {
	if s.Log != nil && ctx.Err() == nil {
		s.Log(c.nc.RemoteAddr(), err)
	}
}

// dropped logs the first such connection, the second, the fourth, the eighth and so on: a flood fills no log.
func (s *Server) dropped(ctx context.Context, c *Conn, why drop, err error) {
	s.mu.Lock()
	s.drops[why]++
	n := s.drops[why]
	s.mu.Unlock()
	switch {
	case n == 1:
		s.log(ctx, c, err)
	case n&(n-1) == 0:
		s.log(ctx, c, fmt.Errorf("%w (%d times so far)", err, n))
	}
}

// dispatch serves the session, and tells whether it was another language's.
func (s *Server) dispatch(ctx context.Context, c *Conn) (foreign bool, err error) {
	if s.Greet != nil {
		if foreign, err = s.Greet(ctx, c); foreign || err != nil {
			return foreign, err
		}
	}
	req, err := c.Receive(ctx, KindRequest)
	if err != nil {
		return false, err
	}
	h := s.Services[req.Service]
	if h == nil {
		return false, fmt.Errorf("%w: service %q is not served here", ErrProtocol, clip(printable(req.Service)))
	}
	return false, h(ctx, c, req)
}

// admit counts a session in, or says why not.
func (s *Server) admit(c *Conn) error {
	sessions, perPeer := s.Sessions, s.PerPeer
	if sessions == 0 {
		sessions = DefaultSessions
	}
	if perPeer == 0 {
		perPeer = DefaultPerPeer
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	peer := c.Remote().AddrPort().Addr().Unmap()
	switch {
	case s.total >= sessions && sessions == 1:
		return errors.New("busy with another client: try again when it has ended")
	case s.total >= sessions:
		return fmt.Errorf("busy with %d sessions: try again later", s.total)
	case s.peers[peer] >= perPeer:
		return fmt.Errorf("busy with %d sessions of yours: end one of them first", perPeer)
	}
	if s.peers == nil {
		s.peers = make(map[netip.Addr]int)
	}
	s.total++
	s.peers[peer]++
	return nil
}

func (s *Server) leave(c *Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	peer := c.Remote().AddrPort().Addr().Unmap()
	s.total--
	if s.peers[peer]--; s.peers[peer] == 0 {
		delete(s.peers, peer)
	}
}
