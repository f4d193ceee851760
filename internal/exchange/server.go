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

	"github.com/gorxe/gorxe/internal/guard"
	"github.com/gorxe/gorxe/internal/peerio"
	"github.com/gorxe/gorxe/roce"
)

// acceptRetry is the pause after an accept error that passes when sessions end.
const acceptRetry = 50 * time.Millisecond

// Handler serves one session, starting with its request. The server reports the handler's error to
// the peer and to its log, and closes the connection.
type Handler func(ctx context.Context, c *Conn, request *Message) error

// Detector recognizes a peer that speaks another protocol than the exchange. If it does, serve
// serves the peer; otherwise serve and err are nil. A Detector must pass the GIDs that the peer
// sends to Conn.CheckGID.
type Detector func(ctx context.Context, c *Conn) (serve func(context.Context) error, err error)

// Server accepts sessions and passes each one to the handler of the service that it requests. Set
// the fields before calling Serve.
type Server struct {
	Services map[string]Handler
	Sessions int // at a time; 0: DefaultSessions
	// PerPrefix is the number of sessions of one prefix (see package limit) at a time; 0:
	// DefaultPerPrefix. A prefix also gets no more sessions than it leaves for all others.
	PerPrefix int
	// Guard decides which peers are served, and counts those that are not; nil: everyone.
	Guard *guard.Guard
	// CheckGID reports whether the peer of a TCP connection may use a GID; nil: SameAddr.
	CheckGID func(ctx context.Context, peer netip.Addr, gid roce.GID) error
	// Detect, if set, is called before the server reads a request. If it returns a function, the
	// server calls that function as soon as it admits the session.
	Detect Detector
	// Log, if set, is called for each session that failed, possibly by several goroutines at once.
	// Guard.Limit bounds the number of lines.
	Log guard.Log

	pending pendingConns
	once    sync.Once
	limits  limits
}

// loopback is the name of the interface that every network namespace has.
const loopback = "lo"

// Listen listens on a TCP port. If iface is not empty, it listens on that interface or local
// address only, so that servers on different interfaces of a host can use the same port.
func Listen(ctx context.Context, iface string, port int) (net.Listener, error) {
	at := ""
	if a, err := netip.ParseAddr(iface); err == nil {
		at, iface = a.String(), ""
		if a.IsLoopback() { // otherwise a server on any interface would have the port there, too
			iface = loopback
		}
	}
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
	ln, err := lc.Listen(ctx, "tcp", net.JoinHostPort(at, strconv.Itoa(port)))
	if errors.Is(err, unix.EADDRINUSE) {
		return nil, fmt.Errorf("TCP port %d is in use: stop the other gorxe, "+
			"or choose another port with --port on both sides", port)
	}
	if errors.Is(err, unix.EACCES) {
		return nil, fmt.Errorf("TCP port %d needs root: choose another port with --port on both sides",
			port)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot listen on TCP port %d: %w", port, peerio.Reason(err))
	}
	return ln, nil
}

// Serve accepts sessions until ctx ends. It then closes ln, waits for the sessions to end and
// returns nil.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	s.once.Do(func() { s.limits.init(s.Sessions, s.PerPrefix) })
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
		case passes(err):
			time.Sleep(acceptRetry)
			continue
		case err != nil:
			return fmt.Errorf("cannot accept connections: %w", peerio.Reason(err))
		}
		c := NewConn(nc)
		c.checkGID = s.CheckGID
		if s.Guard.Permits(c.peer()) {
			s.pending.add(c)
			wg.Go(func() { s.session(ctx, c) })
			continue
		}
		s.log(ctx, c, guard.ErrRefused)
		s.refuse(c, guard.ErrRefused, wg.Go)
	}
}

// passes reports whether an accept error passes when other connections end.
func passes(err error) bool {
	return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) ||
		errors.Is(err, unix.ENOBUFS) || errors.Is(err, unix.ENOMEM) ||
		errors.Is(err, unix.ECONNABORTED)
}

// refuse sends an error to the peer and closes the connection. run runs the part that waits for the
// peer. If too many peers are being refused, refuse only closes the connection.
func (s *Server) refuse(c *Conn, err error, run func(func())) {
	end, ok := s.limits.refusals.Take(c.peer())
	if !ok {
		c.Close()
		return
	}
	run(func() {
		defer end()
		c.Refuse(err)
	})
}

// session runs one session.
func (s *Server) session(ctx context.Context, c *Conn) {
	defer c.Close()
	serve, foreign, err := s.start(ctx, c)
	if s.pending.remove(c) {
		s.Guard.Count(guard.Lobby)
		s.log(ctx, c, errEvicted)
		return
	}
	if err == nil {
		err = s.limits.admit(c.peer())
	}
	if err == nil {
		err = serve(ctx)
		s.limits.leave(c.peer())
	}
	if err == nil {
		return
	}
	s.log(ctx, c, err)
	s.Guard.Count(reason(err))
	if !foreign && !errors.Is(err, ErrRemote) && !errors.Is(err, ErrGone) {
		s.refuse(c, err, func(f func()) { f() })
	}
}

// reason returns the counter of an error.
func reason(err error) guard.Reason {
	switch {
	case errors.Is(err, guard.ErrBusy):
		return guard.Busy
	case errors.Is(err, ErrAddress):
		return guard.Address
	}
	return guard.Failed
}

func (s *Server) log(ctx context.Context, c *Conn, err error) {
	if s.Log != nil && ctx.Err() == nil {
		s.Log(c.Remote().AddrPort(), err)
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
	if err := s.limits.check(c.peer()); err != nil {
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
	return func(ctx context.Context) error {
		if err := c.checkGIDs(ctx, req.QPs); err != nil {
			return err
		}
		return h(ctx, c, req)
	}, false, nil
}
