package stock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/gorxe/gorxe/internal/perftest"
	"github.com/gorxe/gorxe/internal/session"
	"github.com/gorxe/gorxe/roce"
)

const (
	// A perftest server stops listening between the connection for its messages and those of its
	// queue pairs, so a client tries again.
	dialTries = 20
	dialPause = 100 * time.Millisecond
	// cmSessions is the number of sessions over rdma_cm at a time, divided among the clients'
	// prefixes.
	cmSessions = 32
)

// dialQPs connects all queue pairs by rdma_cm and returns their path MTU.
func (c *client) dialQPs(ctx context.Context) (roce.MTU, error) {
	if err := c.msgs.ExchangeBlankKeys(ctx); err != nil {
		return 0, err
	}
	for i, qp := range c.Side.Session.QPs {
		conn, err := c.dialQP(ctx, qp)
		if err != nil {
			return 0, fmt.Errorf("queue pair %d: %w", i, err)
		}
		c.conns = append(c.conns, conn)
	}
	if err := c.msgs.ExchangeBlankKeys(ctx); err != nil {
		return 0, err
	}
	a, err := c.Side.Session.QP.Query()
	return a.PathMTU, err
}

func (c *client) dialQP(ctx context.Context, qp *roce.QP) (*roce.Conn, error) {
	o := roce.DialOptions{ConnectOptions: roce.ConnectOptions{MTU: c.Params.MTU}}
	for try := 1; ; try++ {
		conn, err := c.Side.Session.Dev.Dial(ctx, c.peer.cm, qp, o)
		var rejected *roce.RejectError
		if !errors.As(err, &rejected) || rejected.Reason != roce.RejectNoListener ||
			try == dialTries {
			return conn, err
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(dialPause):
		}
	}
}

// acceptor distributes the connection requests of rdma_cm: some start a session, others are for the
// queue pairs of a session.
type acceptor struct {
	server *Server
	mu     sync.Mutex
	// waiting holds the sessions whose client connects its queue pairs. A request does not tell to
	// which of several sessions with one address it belongs. The oldest one gets it.
	waiting map[netip.Addr][]*serverSession
}

// ServeCM serves perftest clients that connect by rdma_cm until ctx ends or l is closed. It returns
// when all sessions have ended. ended is called with the result of each session.
func (s *Server) ServeCM(ctx context.Context, l *roce.Listener,
	ended func(peer netip.AddrPort, err error)) error {
	a := &acceptor{server: s, waiting: make(map[netip.Addr][]*serverSession)}
	clients := session.Acceptor[*messageConn]{
		Guard: s.Guard, Sessions: cmSessions, ConnectTime: s.times.connect,
		Offer: a.offer, Open: a.open, Serve: a.session, Ended: ended,
	}
	return clients.Run(ctx, l)
}

// offer gives a request to a session that waits for it. It reports whether there is one.
func (a *acceptor) offer(r *roce.Request) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, v := range a.waiting[r.RemoteAddr().Addr()] {
		v.offered.Add(1)
		select {
		case v.reqs <- r:
			return true
		default:
			v.offered.Done() // the session has more requests than it can need
		}
	}
	return false
}

// wait adds a session that waits for queue pairs.
func (a *acceptor) wait(v *serverSession) {
	a.mu.Lock()
	defer a.mu.Unlock()
	addr := v.peer.cm.Addr()
	a.waiting[addr] = append(a.waiting[addr], v)
}

// stopWaiting removes a session. It gets no requests afterwards.
func (a *acceptor) stopWaiting(v *serverSession) {
	a.mu.Lock()
	defer a.mu.Unlock()
	addr := v.peer.cm.Addr()
	if i := slices.Index(a.waiting[addr], v); i >= 0 {
		a.waiting[addr] = slices.Delete(a.waiting[addr], i, i+1)
	}
	if len(a.waiting[addr]) == 0 {
		delete(a.waiting, addr)
	}
}

// open accepts the connection for a client's messages.
func (a *acceptor) open(ctx context.Context, r *roce.Request) (*messageConn, error) {
	m, err := newMessageConn(a.server.Dev, nil, cmp.Or(a.server.times.quiet, peerQuiet))
	if err != nil {
		return nil, errors.Join(err, r.Reject(nil))
	}
	if err := m.c.Accept(ctx, r, roce.AcceptOptions{}); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// session serves one client.
func (a *acceptor) session(ctx context.Context, r *roce.Request, m *messageConn) error {
	link := perftest.NewMessageLink(m)
	msgs, err := perftest.AnswerHello(ctx, link)
	if err != nil {
		return err
	}
	if msgs.Peer.Gorxe {
		return fmt.Errorf("%w: a client with -R sent the mark of gorxe", perftest.ErrProtocol)
	}
	p := peer{link: link, local: r.LocalAddr().Addr(), remote: r.RemoteAddr().Addr(),
		cm: r.RemoteAddr()}
	return a.server.serve(ctx, p, msgs, a)
}

// BlankKey implements perftest.Host: the client is about to connect its queue pairs, or has done
// so.
func (v *serverSession) BlankKey() error {
	if v.acceptor == nil {
		return fmt.Errorf("%w: a blank key over TCP", perftest.ErrProtocol)
	}
	if v.blankKeys++; v.blankKeys == 1 {
		v.acceptor.wait(v)
		return nil
	}
	v.acceptor.stopWaiting(v)
	v.offered.Wait() // the last message of a connection may arrive after the blank key
	return nil
}

// acceptQPs accepts the client's queue pairs until ctx ends. An error ends the session.
func (v *serverSession) acceptQPs(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	watched := make(chan struct{})
	go func() {
		v.disconnectWhenSilent(ctx)
		close(watched)
	}()
	defer func() {
		cancel()
		<-watched
	}()
	for {
		select {
		case r := <-v.reqs:
			err := v.acceptQP(ctx, r)
			v.offered.Done()
			if err != nil && ctx.Err() == nil {
				v.rejectQPs()
				return err
			}
		case <-ctx.Done():
			v.rejectQPs()
			return nil
		}
	}
}

// rejectQPs rejects the queue pairs that are offered when the session ends.
func (v *serverSession) rejectQPs() {
	v.acceptor.stopWaiting(v)
	for {
		select {
		case r := <-v.reqs:
			_ = r.Reject(nil) // the client sees the end of the session in any case
			v.offered.Done()
		default:
			return
		}
	}
}

func (v *serverSession) acceptQP(ctx context.Context, r *roce.Request) error {
	v.mu.Lock()
	i, qp, err := v.addQP()
	v.mu.Unlock()
	if err != nil {
		return errors.Join(err, r.Reject(nil))
	}
	c, err := r.Accept(ctx, qp, roce.AcceptOptions{})
	if err != nil {
		return err
	}
	a, err := qp.Query()
	v.mu.Lock()
	defer v.mu.Unlock()
	v.conns = append(v.conns, c)
	v.mtu = a.PathMTU
	v.remoteQPN[i] = r.Params().QPN
	return err
}

// findQP returns the index of the queue pair that is connected to the one that k describes.
func (v *serverSession) findQP(k perftest.Key) (int, error) {
	for i, n := range v.remoteQPN[:len(v.s.QPs)] {
		if n == k.QPN {
			return i, nil
		}
	}
	return 0, fmt.Errorf("%w: QPN %#x was not connected by rdma_cm", perftest.ErrProtocol,
		uint32(k.QPN))
}
