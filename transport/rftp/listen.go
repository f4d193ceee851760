package rftp

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/gorxe/gorxe/internal/limit"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/internal/accept"
	"github.com/gorxe/gorxe/transport/internal/blocks"
)

// dataTime is how long a peer may take for the next step of connecting its data QPs. The kernel's
// rdma_cm repeats a lost REQ after 6.2 s, so three of them in a row may get lost. Peers may connect
// one QP after the other, so a limit for all of them would fail on a link with losses.
const dataTime = 20 * time.Second

// Listener accepts connections. Its methods are safe for concurrent use. It needs real time.
type Listener struct {
	cfg ListenConfig
	dev *roce.Device
	l   *roce.Listener
	a   *accept.Acceptor[*Conn]

	mu      sync.Mutex
	shares  *limit.Shares
	pending map[uint64]*pending // connections whose data QPs are being connected
}

// pending is a connection that waits for its data QPs.
type pending struct {
	from     netip.Addr
	requests chan *roce.Request
}

// Listen makes dev accept connections at addr. In virtual time it returns roce.ErrVirtualTime.
func Listen(dev *roce.Device, addr netip.AddrPort, cfg ListenConfig) (*Listener, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	rl, err := accept.Listen(dev, addr, accept.ListenOptions(cfg.Peers, cfg.Permits))
	if err != nil {
		return nil, err
	}
	l := &Listener{cfg: cfg, dev: dev, l: rl, pending: map[uint64]*pending{},
		shares: limit.NewShares(int64(cfg.MaxPeerConns), int64(cfg.MaxConns))}
	l.a = accept.New(accept.Config[*Conn]{Listener: rl, Check: l.check, Open: l.open,
		Refused: l.refused, Max: accept.Max, Time: (1 + MaxQPs) * dataTime})
	return l, nil
}

// Addr returns the address that the Listener listens on.
func (l *Listener) Addr() netip.AddrPort { return l.l.Addr() }

// Accept waits for the next connection. Its error is that of ctx, roce.ErrClosed, or that of a
// device that failed. Requests of other protocols, and of peers whose limits do not fit, are
// rejected; see ListenConfig.Refused.
func (l *Listener) Accept(ctx context.Context) (*Conn, error) { return l.a.Accept(ctx) }

// Close stops listening. Connections that Accept has returned continue.
func (l *Listener) Close() error { return l.a.Close() }

// errData means that a request is for a data QP and that its connection answers it.
var errData = errors.New("rftp: the request of a data QP")

// refused reports a request. A dialer whose path MTU is refused tries again with a smaller one.
func (l *Listener) refused(peer netip.AddrPort, err error) {
	if l.cfg.Refused != nil && !errors.Is(err, errData) && !errors.Is(err, roce.ErrMTU) {
		l.cfg.Refused(peer, err)
	}
}

// check rejects requests that do not fit, and passes those of data QPs to their connections.
func (l *Listener) check(q *roce.Request) error {
	b := q.PrivateData()
	kind, err := parseHeader(b)
	if err != nil {
		own := l.cfg.limits()
		return errors.Join(err, q.Reject(own.put()))
	}
	if kind == kindData {
		return l.checkData(q)
	}
	own := l.cfg.limits()
	peer, _, err := parseRequest(b)
	if err == nil {
		_, err = agree(own, peer)
	}
	if err != nil {
		return errors.Join(err, q.Reject(own.put()))
	}
	return nil
}

func (l *Listener) checkData(q *roce.Request) error {
	id, _ := parseData(q.PrivateData())
	l.mu.Lock()
	p := l.pending[id]
	l.mu.Unlock()
	if p != nil && p.from == q.RemoteAddr().Addr() {
		select {
		case p.requests <- q:
			return errData
		default:
		}
	}
	return errors.Join(fmt.Errorf("%w: a data QP of no connection", ErrPeer), q.Reject(nil))
}

// open accepts a connection: its control QP, then its data QPs.
func (l *Listener) open(ctx context.Context, q *roce.Request) (*Conn, error) {
	from := q.RemoteAddr().Addr()
	l.mu.Lock()
	ok := l.shares.Take(from, 1)
	l.mu.Unlock()
	if !ok {
		return nil, errors.Join(fmt.Errorf("%w: raise MaxConns or MaxPeerConns", ErrTooMany),
			q.RejectWith(roce.RejectNoResources, nil))
	}
	release := sync.OnceFunc(func() {
		l.mu.Lock()
		l.shares.Return(from, 1)
		l.mu.Unlock()
	})
	c, err := l.answer(ctx, q)
	if err != nil {
		release()
		return nil, err
	}
	c.cleanup = release
	return c, nil
}

func (l *Listener) answer(ctx context.Context, q *roce.Request) (*Conn, error) {
	peer, class, err := parseRequest(q.PrivateData())
	if err != nil {
		return nil, err
	}
	a, err := agree(l.cfg.limits(), peer)
	if err != nil {
		return nil, err
	}
	gid := blocks.GIDFor(l.dev, q.LocalAddr().Addr())
	c, err := newConn(l.dev, l.cfg.Config, a.size, gid)
	if err != nil {
		return nil, errors.Join(err, q.RejectWith(roce.RejectNoResources, nil))
	}
	c.class = class
	if err := c.agree(a); err != nil {
		return nil, errors.Join(err, q.RejectWith(roce.RejectNoResources, nil), c.destroy())
	}
	if err := l.connect(ctx, q, c); err != nil {
		return nil, errors.Join(err, c.destroy())
	}
	return c, nil
}

// connect answers the request of the control QP, and those of the data QPs.
func (l *Listener) connect(ctx context.Context, q *roce.Request, c *Conn) error {
	var secret [8]byte
	_, _ = rand.Read(secret[:]) // never fails
	id := binary.BigEndian.Uint64(secret[:])
	p := &pending{q.RemoteAddr().Addr(), make(chan *roce.Request, c.agreed.qps)}
	l.mu.Lock()
	l.pending[id] = p // the peer may connect data QPs before it confirms the control QP
	l.mu.Unlock()
	defer l.forget(id)
	c.rcs = make([]*roce.Conn, 1+c.agreed.qps)
	o := roce.AcceptOptions{ConnectOptions: c.connect(true), PrivateData: c.agreed.put(id)}
	var err error
	if c.rcs[0], err = confirmed(ctx, q, c.ctl, o); err != nil {
		return err
	}
	if err := l.connectData(ctx, p, c); err != nil {
		return err
	}
	return c.start()
}

// confirmed accepts a request within accept.Time.
func confirmed(ctx context.Context, q *roce.Request, qp *roce.QP, o roce.AcceptOptions) (
	*roce.Conn, error) {
	one, cancel := context.WithTimeout(ctx, accept.Time)
	defer cancel()
	rc, err := q.Accept(one, qp, o)
	if err != nil && one.Err() != nil && ctx.Err() == nil {
		err = fmt.Errorf("rftp: the peer did not confirm a QP within %v: %w", accept.Time, err)
	}
	return rc, err
}

// forget rejects further data QPs of a connection.
func (l *Listener) forget(id uint64) {
	l.mu.Lock()
	p := l.pending[id]
	delete(l.pending, id)
	l.mu.Unlock()
	for {
		select {
		case q := <-p.requests:
			_ = q.Reject(nil) // the peer may have given up
		default:
			return
		}
	}
}

// errLate means that a peer has not connected its data QPs in time.
var errLate = fmt.Errorf("the peer has connected no further data QP within %v", dataTime)

// connectData accepts all data QPs, concurrently. It goes on when the peer ends the connection of
// the control QP: what the peer has sent before is received.
func (l *Listener) connectData(ctx context.Context, p *pending, c *Conn) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	patience := time.AfterFunc(dataTime, func() { cancel(errLate) })
	defer patience.Stop()
	done := make(chan error, c.agreed.qps)
	used := make([]bool, c.agreed.qps)
	for left := c.agreed.qps; left > 0; patience.Reset(dataTime) {
		select {
		case q := <-p.requests:
			_, i := parseData(q.PrivateData())
			if i >= len(used) || used[i] {
				return errors.Join(fmt.Errorf("%w: data QP %d of %d", ErrPeer, i, len(used)),
					q.Reject(nil))
			}
			used[i] = true
			wg.Go(func() { done <- l.acceptData(ctx, q, c, i) })
		case err := <-done:
			if err != nil {
				return cmp.Or(context.Cause(ctx), err)
			}
			left--
		case <-ctx.Done():
			return fmt.Errorf("rftp: waiting for data QPs: %w", context.Cause(ctx))
		}
	}
	return nil
}

func (l *Listener) acceptData(ctx context.Context, q *roce.Request, c *Conn, i int) (err error) {
	qp, err := c.createData(i)
	if err != nil {
		return errors.Join(err, q.RejectWith(roce.RejectNoResources, nil))
	}
	o := roce.AcceptOptions{ConnectOptions: c.connect(false), PrivateData: header(kindData)}
	c.rcs[1+i], err = confirmed(ctx, q, qp, o)
	return err
}
