package soak

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	"github.com/gorxe/gorxe/internal/endpoint"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/roce/cm"
)

const (
	cmPort = 7471
	// hostileAccept is how long the server waits for an attacker whose request it accepts.
	hostileAccept = 100 * time.Millisecond
)

// listener accepts connections at the device under test.
type listener struct {
	w    *world
	l    *roce.Listener
	done chan struct{}

	mu    sync.Mutex
	calls map[uint64]*call // by token
}

// call is an expected connection request.
type call struct {
	p      *pair
	refuse bool
	conn   chan accepted
}

type accepted struct {
	c   *roce.Conn
	err error
}

func (w *world) newListener() *listener {
	l, err := w.tb.Dev[0].Listen(netip.AddrPortFrom(netip.Addr{}, cmPort), roce.ListenOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	s := &listener{w: w, l: l, done: make(chan struct{}), calls: map[uint64]*call{}}
	go s.serve()
	return s
}

func (s *listener) close() error {
	err := s.l.Close()
	<-s.done
	return err
}

// serve answers requests until the listener is closed.
func (s *listener) serve() {
	defer close(s.done)
	for {
		req, err := s.l.Accept(context.Background())
		if err != nil {
			return
		}
		honest := false
		for _, a := range s.w.tb.Link.Port(1).Addrs() {
			honest = honest || a.Addr() == req.RemoteAddr().Addr()
		}
		var c *call
		if token := req.PrivateData(); honest && len(token) >= 8 {
			s.mu.Lock()
			c = s.calls[binary.LittleEndian.Uint64(token)]
			s.mu.Unlock()
		}
		s.w.targets.busy.Add(1)
		go func() {
			defer s.w.targets.busy.Add(-1)
			if c != nil {
				s.answer(req, c)
			} else {
				s.hostile(req)
			}
		}()
	}
}

// answer answers an honest request. A failure is an error of the test at the client.
func (s *listener) answer(req *roce.Request, c *call) {
	private := req.PrivateData()[:8]
	if c.refuse {
		c.conn <- accepted{err: req.Reject(private)}
		return
	}
	ctx, cancel := s.w.wait()
	defer cancel()
	conn, err := req.Accept(ctx, c.p.sv.QP, roce.AcceptOptions{PrivateData: private})
	c.conn <- accepted{conn, err}
}

// hostile refuses or accepts a request of the attacker, who never confirms it.
func (s *listener) hostile(req *roce.Request) {
	if time.Now().UnixNano()%2 == 0 {
		_ = req.Reject(nil) // the attacker may have canceled the request
		return
	}
	typ := roce.RC
	if req.Params().Transport != cm.RC {
		typ = roce.UC
	}
	e, err := endpoint.New(s.w.tb.Dev[0], endpoint.Config{QP: roce.QPConfig{Type: typ,
		SendDepth: 1, RecvDepth: 1}})
	if err != nil {
		s.w.fail("queue pair for a hostile connection request: %v", err)
		return
	}
	s.w.n[qps].Add(1)
	ctx, cancel := context.WithTimeout(context.Background(), hostileAccept)
	defer cancel()
	if conn, err := req.Accept(ctx, e.QP, roce.AcceptOptions{}); err == nil {
		_ = conn.Close() // the attacker may end it first
	}
	if err := e.Close(); err != nil {
		s.w.fail("close the queue pair of a hostile connection request: %v", err)
	}
}

// connect is one connection by the connection manager.
func (s *listener) connect(r *rand.Rand) (err error) {
	if !s.w.pause(r, 5*pauseHostile) {
		return nil
	}
	p, err := s.w.newPair(s.w.tb.Dev, r)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	c := &call{p: p, refuse: r.IntN(5) == 0, conn: make(chan accepted, 1)}
	token := r.Uint64()
	s.mu.Lock()
	s.calls[token] = c
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.calls, token)
		s.mu.Unlock()
	}()
	private := binary.LittleEndian.AppendUint64(nil, token)
	ctx, cancel := s.w.wait()
	defer cancel()
	to := netip.AddrPortFrom(p.sv.QP.Local().GID.Addr(), cmPort)
	conn, err := s.w.tb.Dev[1].Dial(ctx, to, p.cl.QP,
		roce.DialOptions{ConnectOptions: options(r), PrivateData: private})
	if c.refuse {
		return s.refused(ctx, c, err, private)
	}
	if err != nil {
		return fmt.Errorf("dial: %w", err)
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	var peer accepted
	select {
	case peer = <-c.conn:
	case <-ctx.Done():
		return errors.New("the server has not accepted a connection that the client has")
	}
	if peer.err != nil {
		return fmt.Errorf("accept: %w", peer.err)
	}
	defer func() { err = errors.Join(err, peer.c.Close()) }()
	if !bytes.HasPrefix(conn.PrivateData(), private) {
		return errors.New("private data of the reply differ")
	}
	if err := p.work(1 + r.IntN(6)); err != nil {
		return err
	}
	s.w.n[connected].Add(1)
	if p.ended {
		return nil
	}
	return s.disconnect(ctx, r, conn, peer.c)
}

func (s *listener) refused(ctx context.Context, c *call, err error, private []byte) error {
	var reject *roce.RejectError
	if !errors.As(err, &reject) || !bytes.HasPrefix(reject.PrivateData, private) {
		return fmt.Errorf("dial to a server that refuses: %w", err)
	}
	select {
	case a := <-c.conn:
		s.w.n[refused].Add(1)
		return a.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// disconnect ends the connection at one side. The other side must notice.
func (s *listener) disconnect(ctx context.Context, r *rand.Rand, a, b *roce.Conn) error {
	if r.IntN(2) == 0 {
		a, b = b, a
	}
	end := a.Close
	if r.IntN(4) == 0 {
		end = a.Abort
	}
	if err := end(); err != nil {
		return err
	}
	select {
	case <-b.Done():
	case <-ctx.Done():
		return errors.New("a peer did not notice the end of its connection")
	}
	if err := b.Err(); !errors.Is(err, roce.ErrDisconnected) {
		return fmt.Errorf("a peer's end of the connection is reported as %w", err)
	}
	return nil
}
