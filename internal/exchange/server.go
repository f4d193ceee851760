package exchange

import (
	"cmp"
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

	"github.com/gorxe/gorxe/internal/peerio"
)

// Default limits of a Server.
const (
	DefaultSessions = 32 // at a time, from all peers
	DefaultPerPeer  = 8  // at a time, from one address
)

// acceptRetry is the pause after an accept error that passes when sessions end.
const acceptRetry = 50 * time.Millisecond

// Handler serves one session, starting with its request. The server reports the handler's error to
// the peer and to its log, and closes the connection.
type Handler func(ctx context.Context, c *Conn, request *Message) error

// Detector recognizes a peer that speaks another protocol than the exchange. If it does, serve
// serves the peer; otherwise serve and err are nil.
type Detector func(ctx context.Context, c *Conn) (serve func(context.Context) error, err error)

// Server accepts sessions and passes each one to the handler of the service that it requests. Set
// the fields before calling Serve.
type Server struct {
	Services map[string]Handler
	Sessions int // at a time; 0: DefaultSessions
	PerPeer  int // at a time from one address; 0: DefaultPerPeer
	// Detect, if set, is called before the server reads a request. If it returns a function, the
	// server calls that function as soon as it admits the session.
	Detect Detector
	// Log, if set, is called for each session that failed, possibly by several goroutines at once.
	Log func(peer net.Addr, err error)

	pending pendingConns
	mu      sync.Mutex
	total   int
	peers   map[netip.Addr]int
	drops   [numDropReasons]int
}

// dropReason is the reason why a connection gets no session.
type dropReason uint8

const (
	dropEvicted dropReason = iota // it was the oldest of too many without a request
	dropBusy                      // there are too many sessions
	numDropReasons
)

// errBusy means that there are too many sessions.
var errBusy = errors.New("busy")

// Listen listens on a TCP port. If iface is not empty, it listens on that interface only, so that
// servers on different interfaces of a host can use the same port.
func Listen(ctx context.Context, iface string, port int) (net.Listener, error) {
	lc := net.ListenConfig{Control: func(_, _ string, rc syscall.RawConn) error {
		if iface == "" {
			return nil
		}
		var err error
		if cerr := rc.Control(func(fd uintptr) {
			err = unix.BindToDevice(int(fd),
				iface)
		}); cerr != nil {
			return cerr
		}
		return err
	}}
	ln, err := lc.Listen(ctx, "tcp", ":"+strconv.Itoa(port))
	if errors.Is(err, unix.EADDRINUSE) {
		return nil, fmt.Errorf("TCP port %d is in use: stop the other gorxe, "+
			"or choose another port with --port on both sides", port)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot listen on TCP port %d: %w", port, peerio.Reason(err))
	}
	return ln, nil
}

// Serve accepts sessions until ctx ends. It then closes ln, waits for the sessions to end and
// returns nil.
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
		case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE),
			errors.Is(err, unix.ECONNABORTED):
			time.Sleep(acceptRetry)
			continue
		case err != nil:
			return fmt.Errorf("cannot accept connections: %w", peerio.Reason(err))
		}
		c := NewConn(nc)
		s.pending.add(c)
		wg.Go(func() { s.session(ctx, c) })
	}
}

// session runs one session.
func (s *Server) session(ctx context.Context, c *Conn) {
	defer c.Close()
	serve, foreign, err := s.start(ctx, c)
	if s.pending.remove(c) {
		s.logDropped(ctx, c, dropEvicted,
			fmt.Errorf("more than %d connections have not sent a request: "+
				"closed the oldest one", maxPending))
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
		s.logDropped(ctx, c, dropBusy, err)
		return
	}
	s.log(ctx, c, err)
}

func (s *Server) log(ctx context.Context, c *Conn, err error) {
	if s.Log != nil && ctx.Err() == nil {
		s.Log(c.nc.RemoteAddr(), err)
	}
}

// logDropped logs a connection that gets no session. It logs the first, second, fourth, eighth
// and so on, so that a flood of connections cannot fill the log.
func (s *Server) logDropped(ctx context.Context, c *Conn, why dropReason, err error) {
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

// start reads what the peer requests and returns a function that serves it. foreign reports that
// the peer speaks another protocol. When the server is busy, start fails after the first byte: a
// client of either protocol then reads the error message.
func (s *Server) start(ctx context.Context, c *Conn) (serve func(context.Context) error,
	foreign bool, err error) {
	if _, err := c.PeekByte(ctx, Timeout); err != nil {
		return nil, false, err
	}
	if err := s.checkCapacity(c); err != nil {
		return nil, false, err
	}
	if s.Detect != nil {
		if serve, err := s.Detect(ctx, c); serve != nil || err != nil {
			return serve, true, err
		}
	}
	req, err := c.Receive(ctx, KindRequest)
	if err != nil {
		return nil, false, err
	}
	h := s.Services[req.Service]
	if h == nil {
		return nil, false, fmt.Errorf("%w: this server has no service %q", ErrProtocol,
			clip(printable(req.Service)))
	}
	return func(ctx context.Context) error { return h(ctx, c, req) }, false, nil
}

// checkCapacity returns an error if there are too many sessions for another one.
func (s *Server) checkCapacity(c *Conn) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.capacity(c.peer())
}

// capacity is checkCapacity with s.mu held.
func (s *Server) capacity(peer netip.Addr) error {
	sessions, perPeer := cmp.Or(s.Sessions, DefaultSessions), cmp.Or(s.PerPeer, DefaultPerPeer)
	switch {
	case s.total >= sessions && sessions == 1:
		return fmt.Errorf("%w with another client: try again when it has ended", errBusy)
	case s.total >= sessions:
		return fmt.Errorf("%w with %d sessions: try again later", errBusy, s.total)
	case s.peers[peer] >= perPeer:
		return fmt.Errorf("%w with %d sessions of this client: end one of them first", errBusy,
			perPeer)
	}
	return nil
}

// admit counts a new session, or returns an error if there are too many.
func (s *Server) admit(c *Conn) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.capacity(c.peer()); err != nil {
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

// peer returns the address that the session counts for.
func (c *Conn) peer() netip.Addr { return c.Remote().AddrPort().Addr().Unmap() }
