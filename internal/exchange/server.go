package exchange

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
	// Greet, if set, meets the peer before it asks for a service. If the peer speaks another language than
	// gorxe's, serve is how to serve it once there is a place, or err why that cannot be.
	Greet func(ctx context.Context, c *Conn) (serve func(context.Context) error, err error)
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
	crowded drop = iota // of too many in the lobby it was there for longest
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

// errBusy: there is no place.
var errBusy = errors.New("busy")

// session runs one session, whatever happens in it.
func (s *Server) session(ctx context.Context, c *Conn) {
	defer c.Close()
	serve, foreign, err := s.meet(ctx, c)
	if s.lobby.leave(c) {
		s.dropped(ctx, c, crowded, fmt.Errorf("%d connections do not say what they want: closed the oldest", maxLobby))
		return
	}
	if err == nil {
		err = s.admit(c)
	}
	if err == nil {
		err = serve(ctx)
		s.leave(c)
	}
	if err == nil {
		return
	}
	if !foreign && !errors.Is(err, ErrRemote) && !errors.Is(err, ErrGone) {
		c.Refuse(err)
	}
	if errors.Is(err, errBusy) {
		s.dropped(ctx, c, busy, err)
		return
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

// meet hears what the peer wants, and tells how to serve that and whether it is another language's. Who would find no place is told so
// after its first byte, before it is asked anything: by then a client of either language listens.
func (s *Server) meet(ctx context.Context, c *Conn) (serve func(context.Context) error, foreign bool, err error) {
	if _, err := c.First(ctx, Timeout); err != nil {
		return nil, false, err
	}
	if err := s.look(c); err != nil {
		return nil, false, err
	}
	if s.Greet != nil {
		if serve, err := s.Greet(ctx, c); serve != nil || err != nil {
			return serve, true, err
		}
	}
	req, err := c.Receive(ctx, KindRequest)
	if err != nil {
		return nil, false, err
	}
	h := s.Services[req.Service]
	if h == nil {
		return nil, false, fmt.Errorf("%w: service %q is not served here", ErrProtocol, clip(printable(req.Service)))
	}
	return func(ctx context.Context) error { return h(ctx, c, req) }, false, nil
}

// look says whether a session would find a place.
func (s *Server) look(c *Conn) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.room(c.peer())
}

// room says why there is no place for a peer. Under mu.
func (s *Server) room(peer netip.Addr) error {
	sessions, perPeer := s.Sessions, s.PerPeer
	if sessions == 0 {
		sessions = DefaultSessions
	}
	if perPeer == 0 {
		perPeer = DefaultPerPeer
	}
	switch {
	case s.total >= sessions && sessions == 1:
		return fmt.Errorf("%w with another client: try again when it has ended", errBusy)
	case s.total >= sessions:
		return fmt.Errorf("%w with %d sessions: try again later", errBusy, s.total)
	case s.peers[peer] >= perPeer:
		return fmt.Errorf("%w with %d sessions of yours: end one of them first", errBusy, perPeer)
	}
	return nil
}

// admit counts a session in, or says why not.
func (s *Server) admit(c *Conn) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.room(c.peer()); err != nil {
		return err
	}
	if s.peers == nil {
		s.peers = make(map[netip.Addr]int)
	}
	s.total++
	s.peers[c.peer()]++
	return nil
}

func (s *Server) leave(c *Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	peer := c.peer()
	s.total--
	if s.peers[peer]--; s.peers[peer] == 0 {
		delete(s.peers, peer)
	}
}

// peer is whom a place counts for.
func (c *Conn) peer() netip.Addr { return c.Remote().AddrPort().Addr().Unmap() }
