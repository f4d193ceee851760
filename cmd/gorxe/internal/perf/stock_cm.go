package perf

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/gorxe/gorxe/internal/device"
	"github.com/gorxe/gorxe/internal/perftest"
	"github.com/gorxe/gorxe/internal/session"
	"github.com/gorxe/gorxe/roce"
)

// perftest's -R: the two ends meet by rdma_cm, and the client connects every queue pair so. See package perftest for what
// they say, and mailbox for how.

const (
	// A server listens for the exchange, then anew for queue pairs, and is not there between.
	cmTries = 20
	cmPause = 100 * time.Millisecond
	// Sessions at a time, shared by the clients' addresses.
	cmSessions = 32
	// A client has this long to come once its request is granted, whatever time-outs it asked for.
	cmMeeting = 5 * time.Second
)

// dialCM opens the client's end of a session with a server that was started with -R.
func dialCM(ctx context.Context, dev *roce.Device, flags *device.Flags, addr netip.AddrPort, p *Params, o stockOptions) (*stockClient, error) {
	m, err := newMailbox(dev, mailQuiet)
	if err != nil {
		return nil, err
	}
	link := perftest.NewMailLink(m)
	if m.conn, err = dev.Dial(ctx, addr, m.qp, roce.DialOptions{}); err != nil {
		link.Close()
		return nil, fmt.Errorf("%v, port %d of rdma_cm: %w: is a perftest server running there, with -R?", addr.Addr(), addr.Port(), err)
	}
	talk, err := perftest.Greet(ctx, link, false) // two gorxe ends speak perftest's exchange, too
	if err == nil {
		var k *stockClient
		if k, err = openStock(ctx, dev, flags, meeting{link, localFor(addr), addr}, talk, p, o); err == nil {
			return k, nil
		}
	}
	link.Close()
	return nil, err
}

// dialAll connects all queue pairs, and returns the path MTU that they have.
func (k *stockClient) dialAll(ctx context.Context) (roce.MTU, error) {
	if err := k.talk.Blank(ctx); err != nil {
		return 0, err
	}
	for i, qp := range k.s.QPs {
		c, err := k.dialOne(ctx, qp)
		if err != nil {
			return 0, fmt.Errorf("queue pair %d: %w", i, err)
		}
		k.conns = append(k.conns, c)
	}
	if err := k.talk.Blank(ctx); err != nil {
		return 0, err
	}
	a, err := k.s.QPs[0].Query()
	return a.PathMTU, err
}

func (k *stockClient) dialOne(ctx context.Context, qp *roce.QP) (*roce.Conn, error) {
	for try := 1; ; try++ {
		c, err := k.s.Dev.Dial(ctx, k.at.cm, qp, roce.DialOptions{ConnectOptions: roce.ConnectOptions{MTU: k.p.MTU}})
		var no *roce.RejectError
		if !errors.As(err, &no) || no.Reason != roce.RejectNoListener || try == cmTries {
			return c, err
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(cmPause):
		}
	}
}

// door takes in what comes by rdma_cm: clients, and the queue pairs that clients then connect.
type door struct {
	h  *Host
	mu sync.Mutex
	// The sessions that wait for their client's queue pairs. rdma_cm does not say to which of several sessions with one
	// address a queue pair belongs: the one that has waited longest gets it.
	waiting map[netip.Addr][]*stockServer
}

// ServeCM serves perftest clients that come by rdma_cm until ctx ends or l is closed, and returns when all sessions have
// ended. over hears how each of them went.
func (h *Host) ServeCM(ctx context.Context, l *roce.Listener, over func(peer netip.AddrPort, err error)) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	d := &door{h: h, waiting: make(map[netip.Addr][]*stockServer)}
	places := session.NewPlaces(cmSessions)
	for {
		r, err := l.Accept(ctx)
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, roce.ErrClosed) {
				return nil
			}
			return err
		}
		if d.offer(r) {
			continue
		}
		leave, ok := places.Take(r.RemoteAddr().Addr())
		if !ok {
			_ = r.Reject(nil) // the peer hears of it or asks again
			continue
		}
		wg.Go(func() {
			defer leave()
			over(r.RemoteAddr(), d.session(ctx, r))
		})
	}
}

// offer gives a request to the session that waits for it.
func (d *door) offer(r *roce.Request) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, v := range d.waiting[r.RemoteAddr().Addr()] {
		v.offered.Add(1)
		select {
		case v.reqs <- r:
			return true
		default:
			v.offered.Done() // more than anybody needs
		}
	}
	return false
}

// wait and leave begin and end a session's waiting for queue pairs. After leave it is offered no more.
func (d *door) wait(v *stockServer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	a := v.at.cm.Addr()
	d.waiting[a] = append(d.waiting[a], v)
}

func (d *door) leave(v *stockServer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	a := v.at.cm.Addr()
	for i, w := range d.waiting[a] {
		if w == v {
			d.waiting[a] = append(d.waiting[a][:i], d.waiting[a][i+1:]...)
			break
		}
	}
	if len(d.waiting[a]) == 0 {
		delete(d.waiting, a)
	}
}

// session serves one client to its end.
func (d *door) session(ctx context.Context, r *roce.Request) error {
	m, err := newMailbox(d.h.Dev, cmp.Or(d.h.quiet, mailQuiet))
	if err != nil {
		return errors.Join(err, r.Reject(nil))
	}
	link := perftest.NewMailLink(m)
	defer link.Close()
	come, cancel := context.WithTimeout(ctx, cmp.Or(d.h.meeting, cmMeeting))
	defer cancel()
	if m.conn, err = r.Accept(come, m.qp, roce.AcceptOptions{}); err != nil {
		return err
	}
	srv, err := perftest.Answer(ctx, link)
	if err != nil {
		return err
	}
	if srv.Peer.Gorxe {
		return fmt.Errorf("%w: with -R, a gorxe's mark", perftest.ErrProtocol)
	}
	return d.h.serveStock(ctx, meeting{link, r.LocalAddr().Addr(), r.RemoteAddr()}, srv, d)
}

// Meet is perftest.Host's: the client is about to connect its queue pairs, or has done so.
func (v *stockServer) Meet() error {
	if v.door == nil {
		return fmt.Errorf("%w: a blank key over TCP", perftest.ErrProtocol)
	}
	if v.meets++; v.meets == 1 {
		v.door.wait(v)
		return nil
	}
	v.door.leave(v)
	v.offered.Wait() // the client's last word of a connection may be on its way: it has another one
	return nil
}

// join accepts the client's queue pairs until ctx ends. An error ends the session.
func (v *stockServer) join(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	watched := make(chan struct{})
	go func() {
		v.partWhenOver(ctx)
		close(watched)
	}()
	defer func() {
		cancel()
		<-watched
	}()
	for {
		select {
		case r := <-v.reqs:
			err := v.accept(ctx, r)
			v.offered.Done()
			if err != nil && ctx.Err() == nil {
				return v.turnAway(err)
			}
		case <-ctx.Done():
			return v.turnAway(nil)
		}
	}
}

// turnAway refuses the queue pairs that are still offered when the session ends for err, which it returns.
func (v *stockServer) turnAway(err error) error {
	v.door.leave(v)
	for {
		select {
		case r := <-v.reqs:
			_ = r.Reject(nil) // the session is over, and so is the peer's
			v.offered.Done()
		default:
			return err
		}
	}
}

func (v *stockServer) accept(ctx context.Context, r *roce.Request) error {
	i, qp, err := v.addQP()
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
	v.theirs[i] = r.Params().QPN
	return err
}

// known finds the queue pair that was connected to the one that a key names.
func (v *stockServer) known(k perftest.Key) (int, error) {
	for i, n := range v.theirs[:len(v.s.QPs)] {
		if n == k.QPN {
			return i, nil
		}
	}
	return 0, fmt.Errorf("%w: QPN %#x was not connected by rdma_cm", perftest.ErrProtocol, uint32(k.QPN))
}
