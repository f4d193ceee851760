package roce

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorxe/gorxe/loopback"
)

// serving is a client device and a server device on which Serve runs.
type serving struct {
	client, server *Device
	addr           netip.AddrPort
	stop           context.CancelFunc
	result         <-chan error // of Serve
}

func serve(t *testing.T, c ServeConfig, h Handler, opts ...Option) *serving {
	t.Helper()
	link := newLink(t, loopback.Config{})
	s := &serving{client: newDevice(t, link, 0, opts...), server: newDevice(t, link, 1, opts...)}
	l, err := s.server.Listen(netip.AddrPort{}, ListenOptions{})
	must(t, err)
	s.addr = l.Addr()
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	result := make(chan error, 1)
	s.result = result
	go func() { result <- l.Serve(ctx, c, h) }()
	t.Cleanup(stop)
	return s
}

// dial connects a new QP of the client.
func (s *serving) dial(ctx context.Context, t *testing.T) (*Conn, error) {
	t.Helper()
	pd, err := s.client.AllocPD()
	must(t, err)
	q, err := s.client.CreateQP(pd, QPConfig{})
	must(t, err)
	return s.client.Dial(ctx, s.addr, q, DialOptions{})
}

// objects counts the objects of a device.
func objects(d *Device) (n int) {
	d.ctl.Lock()
	defer d.ctl.Unlock()
	return len(d.pds) + len(d.qps) + len(d.cqs) + len(d.srqs) + len(d.mems) + len(d.mws) +
		len(d.fasts)
}

// Each client gets its own objects, which are released when its connection ends, for whatever
// reason.
func TestServeReleasesObjects(t *testing.T) {
	leakCheck(t)
	causes, entered := make(chan error, 1), make(chan struct{}, 4)
	s := serve(t, ServeConfig{
		Prepare: func(_ context.Context, _ *Request, q *QP, o *AcceptOptions) error {
			m, err := q.PD().AllocMR(64, LocalWrite|RemoteWrite|MWBind)
			if err != nil {
				return err
			}
			if _, err = q.PD().AllocMW(MWType1); err != nil {
				return err
			}
			if _, err = q.device().CreateSRQ(q.PD(), SRQConfig{Depth: 4}); err != nil {
				return err
			}
			if _, err = q.PD().NewBufferPool(100, 3, LocalWrite); err != nil {
				return err
			}
			o.PrivateData = []byte("hello")
			return q.PostRecv(RecvWR{SGEs: []SGE{m.SGE(0, 64)}})
		},
	}, func(ctx context.Context, c *Conn) error {
		entered <- struct{}{}
		<-ctx.Done()
		causes <- context.Cause(ctx)
		return nil
	})
	ctx := within(t)
	for range 3 {
		c, err := s.dial(ctx, t)
		must(t, err)
		if got := string(c.PrivateData()[:5]); got != "hello" {
			t.Errorf("private data %q, want hello", got)
		}
		<-entered // a connection that ends earlier reaches no Handler
		must(t, c.Close())
		if err := <-causes; !errors.Is(err, ErrDisconnected) {
			t.Errorf("Cause() = %v, want ErrDisconnected", err)
		}
	}
	eventually(t, "all objects are released", func() bool { return objects(s.server) == 0 })
	c, err := s.dial(ctx, t)
	must(t, err)
	<-entered
	s.stop()
	if err := <-s.result; err != nil {
		t.Errorf("Serve() = %v, want nil", err)
	}
	if err := <-causes; !errors.Is(err, context.Canceled) {
		t.Errorf("Cause() = %v after the end of Serve's context, want Canceled", err)
	}
	if n := objects(s.server); n != 0 {
		t.Errorf("%d objects after Serve has returned, want 0", n)
	}
	<-c.Done()
	if !errors.Is(c.Err(), ErrDisconnected) {
		t.Errorf("Err() = %v, want ErrDisconnected", c.Err())
	}
	if _, err := s.dial(ctx, t); !errors.Is(err, ErrRefused) {
		t.Errorf("Dial() = %v after Serve has returned, want ErrRefused", err)
	}
}

// Serve returns only after all Handlers have returned.
func TestServeWaitsForHandlers(t *testing.T) {
	var ended atomic.Bool
	entered := make(chan struct{})
	s := serve(t, ServeConfig{}, func(ctx context.Context, _ *Conn) error {
		close(entered)
		<-ctx.Done()
		time.Sleep(20 * time.Millisecond)
		ended.Store(true)
		return nil
	})
	_, err := s.dial(within(t), t)
	must(t, err)
	<-entered
	s.stop()
	if err := <-s.result; err != nil || !ended.Load() {
		t.Errorf("Serve() = %v, and the Handler has returned: %v", err, ended.Load())
	}
}

// A request that is replaced while the peer confirms the connection gets no Handler.
func TestServeReplacedRequest(t *testing.T) {
	link := newLink(t, loopback.Config{})
	c := &serving{client: newDevice(t, link, 0), server: newDevice(t, link, 1)}
	l, err := c.server.Listen(netip.AddrPort{}, ListenOptions{})
	must(t, err)
	c.addr = l.Addr()
	s, err := newServer(l, ServeConfig{MaxPending: 1}, func(context.Context, *Conn) error {
		t.Error("the Handler of a replaced request was called")
		return nil
	})
	must(t, err)
	ctx := within(t)
	dialed := make(chan *Conn, 1)
	go func() {
		conn, err := c.dial(ctx, t)
		must(t, err)
		dialed <- conn
	}()
	r, err := l.Accept(ctx)
	must(t, err)
	peer, replaced := r.RemoteAddr().Addr(), make(chan struct{})
	slot, err := s.slots.Take(ctx, peer, func(error) { close(replaced) })
	must(t, err)
	go func() {
		if next, err := s.slots.Take(ctx, peer, func(error) {}); err == nil {
			next.Release()
		}
	}()
	<-replaced
	s.serve(ctx, r, slot)
	select {
	case <-(<-dialed).Done():
	case <-ctx.Done():
		t.Error("the connection of a replaced request does not end")
	}
}

func TestServeLimits(t *testing.T) {
	for name, c := range map[string]ServeConfig{
		"total":    {MaxConns: 2},
		"per peer": {MaxConnsPerPeer: 2},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, c, func(ctx context.Context, _ *Conn) error {
				<-ctx.Done()
				return nil
			})
			ctx := within(t)
			first, err := s.dial(ctx, t)
			must(t, err)
			_, err = s.dial(ctx, t)
			must(t, err)
			_, err = s.dial(ctx, t)
			var no *RejectError
			if !errors.As(err, &no) || no.Reason != RejectNoResources ||
				!strings.Contains(err.Error(), "ServeConfig.MaxConns") {
				t.Errorf("third Dial() = %v, want RejectNoResources and advice", err)
			}
			must(t, first.Close())
			eventually(t, "a closed connection makes way for another", func() bool {
				_, err := s.dial(ctx, t)
				return err == nil
			})
		})
	}
}

// A request that Prepare refuses, or that asks for another type of QP, leaves nothing behind.
func TestServeRefuses(t *testing.T) {
	s := serve(t, ServeConfig{
		Prepare: func(_ context.Context, r *Request, _ *QP, _ *AcceptOptions) error {
			switch r.PrivateData()[0] {
			case 'n':
				return &RejectError{Reason: RejectNoQP, PrivateData: []byte("later")}
			case 'x':
				return errors.New("some error")
			}
			return nil
		},
	}, func(context.Context, *Conn) error { return nil })
	ctx := within(t)
	pd, err := s.client.AllocPD()
	must(t, err)
	for _, c := range []struct {
		typ  QPType
		data string
		want RejectReason
	}{{RC, "n", RejectNoQP}, {RC, "x", RejectConsumer}, {UC, "", RejectUnsupported}} {
		q, err := s.client.CreateQP(pd, QPConfig{Type: c.typ})
		must(t, err)
		_, err = s.client.Dial(ctx, s.addr, q, DialOptions{PrivateData: []byte(c.data)})
		var no *RejectError
		if !errors.As(err, &no) || no.Reason != c.want ||
			!strings.Contains(err.Error(), no.Reason.String()+": ") {
			t.Errorf("Dial() = %v, want reason %v and advice", err, c.want)
		} else if c.data == "n" && !strings.HasPrefix(string(no.PrivateData), "later") {
			t.Errorf("private data %q, want later", no.PrivateData)
		}
	}
	eventually(t, "all objects are released", func() bool { return objects(s.server) == 0 })
}

// Serve closes the buffer pools of a connection, although buffers are in use. A goroutine that
// waits for one of them does not wait forever.
func TestServeClosesBufferPools(t *testing.T) {
	got := make(chan error, 2)
	s := serve(t, ServeConfig{}, func(_ context.Context, c *Conn) error {
		p, err := c.QP().PD().NewBufferPool(64, 1, LocalWrite)
		if err != nil {
			return err
		}
		b, _ := p.TryGet()
		go func() {
			_, err := p.Get(within(t))
			got <- err
			b.Release()
			_, err = p.Get(within(t))
			got <- err
		}()
		return nil
	})
	_, err := s.dial(within(t), t)
	must(t, err)
	for range cap(got) {
		if err := <-got; !errors.Is(err, ErrClosed) {
			t.Errorf("Get() = %v after the connection, want ErrClosed", err)
		}
	}
}

// Serve ends with an error when the device is closed, after all Handlers.
func TestServeEndsWithDevice(t *testing.T) {
	bothModes(t, func(t *testing.T, p Progress) {
		causes := make(chan error, 1)
		s := serve(t, ServeConfig{}, func(ctx context.Context, _ *Conn) error {
			<-ctx.Done()
			causes <- context.Cause(ctx)
			return nil
		}, WithProgress(p))
		_, err := s.dial(within(t), t)
		must(t, err)
		must(t, s.server.Close())
		if err := <-s.result; !errors.Is(err, ErrClosed) {
			t.Errorf("Serve() = %v, want ErrClosed", err)
		}
		select {
		case err := <-causes:
			if !errors.Is(err, ErrClosed) && !errors.Is(err, context.Canceled) {
				t.Errorf("Cause() = %v, want ErrClosed or Canceled", err)
			}
		default:
			// With Manual progress the connection may not have been established before.
		}
	})
}

func TestServeChecksArguments(t *testing.T) {
	link := newLink(t, loopback.Config{})
	d, other := newDevice(t, link, 0), newDevice(t, link, 1)
	pd, err := other.AllocPD()
	must(t, err)
	h := func(context.Context, *Conn) error { return nil }
	for _, c := range []struct {
		c    ServeConfig
		h    Handler
		want error
	}{
		{ServeConfig{}, nil, ErrInvalid},
		{ServeConfig{QP: QPConfig{Type: UD}}, h, ErrInvalid},
		{ServeConfig{PD: pd}, h, ErrForeign},
	} {
		if err := d.Serve(context.Background(), netip.AddrPort{}, c.c, c.h); !errors.Is(err,
			c.want) {
			t.Errorf("Serve() = %v, want %v", err, c.want)
		}
	}
}

// Serve works in virtual time.
func TestServeInVirtualTime(t *testing.T) {
	sim := simulate(t, 1, loopback.Plan{Delay: 10 * time.Microsecond}, rigConfig{})
	a, b := sim.ends[0], sim.ends[1]
	ctx, cancel := context.WithCancel(context.Background())
	handled := 0
	sim.Go(func() {
		err := b.Serve(ctx, sim.addr, ServeConfig{Go: sim.Go},
			func(ctx context.Context, c *Conn) error {
				handled++
				return sim.Wait(ctx, func() bool { return c.Err() != nil })
			})
		if err != nil {
			t.Errorf("Serve() = %v", err)
		}
	})
	sim.Go(func() {
		for range 3 {
			q, err := a.CreateQP(a.pd, QPConfig{})
			must(t, err)
			c, err := a.Dial(context.Background(), sim.addr, q, DialOptions{})
			must(t, err)
			must(t, c.Close())
			must(t, q.Close())
		}
		must(t, sim.Sleep(time.Millisecond))
		cancel()
	})
	must(t, sim.Run(time.Minute))
	if handled != 3 {
		t.Errorf("%d connections were handled, want 3", handled)
	}
	if err := b.Serve(ctx, sim.addr, ServeConfig{},
		func(context.Context, *Conn) error { return nil }); !errors.Is(err, ErrVirtualTime) {
		t.Errorf("Serve() without Go = %v, want ErrVirtualTime", err)
	}
}

// A QP without CQs in its configuration gets one that cannot overrun.
func TestOwnCQ(t *testing.T) {
	a, _ := newRig(t, rigConfig{})
	srq, err := a.CreateSRQ(a.pd, SRQConfig{Depth: 70})
	must(t, err)
	for _, c := range []struct {
		c    QPConfig
		want int
	}{
		{QPConfig{SendDepth: 10, RecvDepth: 20}, 30},
		{QPConfig{SendDepth: 10, SRQ: srq}, 80},
		{QPConfig{SendDepth: 10, RecvCQ: a.cq}, 10},
	} {
		before := objects(a.Device)
		q, err := a.CreateQP(a.pd, c.c)
		must(t, err)
		send, recv := q.SendCQ(), q.RecvCQ()
		if send.Depth() < c.want || send.Needed() > send.Depth() {
			t.Errorf("%+v: depth %d, needed %d; want %d", c.c, send.Depth(), send.Needed(), c.want)
		}
		if own := c.c.RecvCQ == nil; own != (recv == send) || (!own && recv != a.cq) {
			t.Errorf("%+v: RecvCQ() is the wrong CQ", c.c)
		}
		other, err := a.CreateQP(a.pd, QPConfig{SendCQ: send})
		must(t, err)
		must(t, q.Close())
		if q.SendCQ() != nil || send.Err() != nil {
			t.Error("the CQ ends although another QP uses it")
		}
		must(t, other.Close())
		if !errors.Is(send.Err(), ErrClosed) {
			t.Errorf("Err() = %v after the last QP was closed, want ErrClosed", send.Err())
		}
		if n := objects(a.Device); n != before {
			t.Errorf("%d objects, before: %d", n, before)
		}
	}
	before := objects(a.Device)
	for _, bad := range []QPConfig{{SendDepth: MaxQueueDepth + 1}, {SendDepth: -5},
		{RecvDepth: MaxCQDepth}} {
		if _, err := a.CreateQP(a.pd, bad); !errors.Is(err, ErrInvalidDepth) {
			t.Errorf("CreateQP(%+v) = %v, want ErrInvalidDepth", bad, err)
		}
	}
	if n := objects(a.Device); n != before {
		t.Errorf("%d objects after failures, before: %d", n, before)
	}
}
