package roce

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorxe/gorxe/loopback"
)

// talkers are two devices with one of everything, not connected; addr is where b listens.
type talkers struct {
	link *loopback.Link
	a, b *end
	addr netip.AddrPort
}

const testPort = 7174

func newTalkers(t *testing.T, c rigConfig) talkers {
	t.Helper()
	link := newLink(t, c.link)
	a, b := newEnd(t, newDevice(t, link, 0, c.opts...), c), newEnd(t, newDevice(t, link, 1, c.opts...), c)
	return talkers{link, a, b, netip.AddrPortFrom(link.Port(1).Addrs()[len(link.Port(1).Addrs())-1].Addr(), testPort)}
}

func (k talkers) listen(t *testing.T) *Listener {
	t.Helper()
	l, err := k.b.Listen(netip.AddrPortFrom(netip.Addr{}, testPort), ListenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	t.Cleanup(cancel)
	return ctx
}

func forAddresses(t *testing.T, f func(t *testing.T, k talkers)) {
	for _, auto := range []Progress{Auto, Manual} {
		t.Run(auto.String(), func(t *testing.T) {
			f(t, newTalkers(t, rigConfig{opts: []Option{WithProgress(auto)}}))
		})
	}
}

// The whole life of a connection: asked for with private data, looked at, accepted with an answer, used both ways,
// ended by one side, noticed by the other.
func TestDialAndListen(t *testing.T) {
	forAddresses(t, func(t *testing.T, k talkers) {
		l := k.listen(t)
		ctx := within(t)
		accepted := make(chan *Conn, 1)
		go func() {
			defer close(accepted)
			r, err := l.Accept(ctx)
			if err != nil {
				t.Errorf("Accept: %v", err)
				return
			}
			if !bytes.HasPrefix(r.PrivateData(), []byte("may I?")) || !r.RemoteAddr().IsValid() {
				t.Errorf("request from %v says %q", r.RemoteAddr(), r.PrivateData())
			}
			if r.Params().QPN != k.a.qp.QPN() || r.Params().InitiatorDepth != 5 {
				t.Errorf("request says %+v", r.Params())
			}
			c, err := r.Accept(ctx, k.b.qp, AcceptOptions{PrivateData: []byte("you may")})
			if err != nil {
				t.Errorf("Request.Accept: %v", err)
				return
			}
			accepted <- c
		}()
		a, err := k.a.Dial(ctx, k.addr, k.a.qp, DialOptions{PrivateData: []byte("may I?"), ConnectOptions: ConnectOptions{MaxRdAtomic: 5}})
		if err != nil {
			t.Fatal(err)
		}
		b := <-accepted
		if b == nil {
			t.FailNow()
		}
		if !bytes.HasPrefix(a.PrivateData(), []byte("you may")) || a.RemoteAddr() != k.addr {
			t.Errorf("answer from %v says %q", a.RemoteAddr(), a.PrivateData())
		}
		if at, _ := k.b.qp.Query(); at.MaxDestRdAtomic != 5 || at.State != StateRTS {
			t.Errorf("b serves %d READs in %v, want the 5 that a asked for in RTS", at.MaxDestRdAtomic, at.State)
		}
		copy(k.a.mr.Bytes(), "over the wire")
		if err := k.a.qp.PostSend(SendWR{Op: OpWrite, Flags: Signaled, SGEs: []SGE{k.a.mr.SGE(0, 13)}, RemoteAddr: k.b.mr.Addr() + 100, RKey: k.b.mr.RKey()}); err != nil {
			t.Fatal(err)
		}
		if wc := poll(t, 1, k.a.cq, k.b.cq); wc[0].Status != Success || string(k.b.mr.Bytes()[100:113]) != "over the wire" {
			t.Errorf("%v: %q", wc[0].Status, k.b.mr.Bytes()[100:113])
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		for !isDone(a) && ctx.Err() == nil {
			k.a.Progress()
			k.b.Progress()
			time.Sleep(time.Millisecond)
		}
		if k.a.qp.State() != StateErr || k.b.qp.State() != StateErr {
			t.Errorf("after the end the QPs are in %v and %v, want ERR", k.a.qp.State(), k.b.qp.State())
		}
		if err := errors.Join(a.Close(), b.Close(), l.Close(), l.Close()); err != nil {
			t.Error(err)
		}
	})
}

func isDone(c *Conn) bool {
	select {
	case <-c.Done():
		return true
	default:
		return false
	}
}

// drive turns both devices in the background, for tests in which one side only waits.
func (k talkers) drive(t *testing.T) {
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				if k.a.Progress()+k.b.Progress() == 0 {
					time.Sleep(100 * time.Microsecond)
				}
			}
		}
	})
	t.Cleanup(func() { close(stop); wg.Wait() })
}

// A refusal says why: nobody listens (reason 8), or the application does not want to and says so.
func TestDialRefused(t *testing.T) {
	forAddresses(t, func(t *testing.T, k talkers) {
		k.drive(t)
		ctx := within(t)
		_, err := k.a.Dial(ctx, k.addr, k.a.qp, DialOptions{})
		var no *RejectError
		if !errors.As(err, &no) || no.Reason != RejectNoListener || !errors.Is(err, ErrRefused) {
			t.Errorf("nobody listens: %v", err)
		}
		if want := "roce: connection refused: invalid service ID (reason 8): nobody listens on that port there"; no.Error() != want {
			t.Errorf("the error reads %q, want %q", no, want)
		}
		l := k.listen(t)
		go func() {
			if r, err := l.Accept(ctx); err == nil {
				err = r.Reject([]byte("no room"))
				if err != nil {
					t.Errorf("Reject: %v", err)
				}
			}
		}()
		_, err = k.a.Dial(ctx, k.addr, k.a.qp, DialOptions{}) // the QP is still in INIT and serves again
		if !errors.As(err, &no) || no.Reason != RejectConsumer || !bytes.HasPrefix(no.PrivateData, []byte("no room")) {
			t.Errorf("refused: %v %+v", err, no)
		}
		go func() {
			r, err := l.Accept(ctx)
			if err != nil {
				return // the test says why
			}
			if err := r.RejectWith(RejectStale, nil); !errors.Is(err, ErrReason) {
				t.Errorf("a reason that only the connection manager has: %v", err)
			}
			if err := r.RejectWith(RejectNoResources, []byte("full")); err != nil {
				t.Errorf("RejectWith: %v", err)
			}
		}()
		_, err = k.a.Dial(ctx, k.addr, k.a.qp, DialOptions{})
		if !errors.As(err, &no) || no.Reason != RejectNoResources || !bytes.HasPrefix(no.PrivateData, []byte("full")) {
			t.Errorf("refused for want of resources: %v %+v", err, no)
		}
		if _, err := k.a.Dial(ctx, k.addr, k.a.qp, DialOptions{PrivateData: make([]byte, 57)}); err == nil || !strings.Contains(err.Error(), "private data") {
			t.Errorf("57 bytes of private data: %v", err)
		}
	})
}

// What can be nobody's address is an error at once, and names it.
func TestDialNobody(t *testing.T) {
	k := newTalkers(t, rigConfig{})
	for _, addr := range []netip.AddrPort{{}, netip.MustParseAddrPort("224.0.0.1:9"), netip.MustParseAddrPort("[::]:9"), netip.AddrPortFrom(k.addr.Addr(), 0)} {
		if _, err := k.a.Dial(within(t), addr, k.a.qp, DialOptions{}); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), addr.String()) {
			t.Errorf("Dial %v: %v", addr, err)
		}
		if _, err := k.a.ResolveUD(within(t), addr, nil); !errors.Is(err, ErrInvalid) {
			t.Errorf("ResolveUD %v: %v", addr, err)
		}
	}
	if _, err := k.a.Dial(within(t), netip.MustParseAddrPort("192.0.2.1:9"), k.a.qp, DialOptions{}); !errors.Is(err, ErrUnreachable) || !strings.Contains(err.Error(), "192.0.2.1: ") {
		t.Errorf("nobody: %v", err)
	}
}

// Port 0 is any that is free, one for each listener, and can be dialed.
func TestListenOnAnyPort(t *testing.T) {
	k := newTalkers(t, rigConfig{})
	ctx := within(t)
	ports := map[uint16]*Listener{}
	for range 100 {
		l, err := k.b.Listen(netip.AddrPortFrom(k.addr.Addr(), 0), ListenOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if p := l.Addr().Port(); p < 0xc000 || ports[p] != nil {
			t.Fatalf("listener %d has port %d", len(ports), p)
		}
		ports[l.Addr().Port()] = l
	}
	for _, l := range ports {
		go func() {
			if r, err := l.Accept(ctx); err == nil {
				_ = r.Reject([]byte("it is me"))
			}
		}()
		var no *RejectError
		if _, err := k.a.Dial(ctx, l.Addr(), k.a.qp, DialOptions{}); !errors.As(err, &no) || !bytes.HasPrefix(no.PrivateData, []byte("it is me")) {
			t.Errorf("%v: %v", l.Addr(), err)
		}
		break
	}
	l, err := k.b.ListenUD(netip.AddrPort{}, ListenOptions{})
	if err != nil || l.Addr().Port() < 0xc000 || !l.Addr().Addr().IsUnspecified() {
		t.Errorf("%v, %v", l, err)
	}
}

// A dead peer costs no more than the context allows, and the QP may try again.
func TestDialGivesUp(t *testing.T) {
	link := newLink(t, loopback.Config{})
	if err := link.SetPlan(0, 1, loopback.Plan{Loss: 1}); err != nil {
		t.Fatal(err)
	}
	a := newEnd(t, newDevice(t, link, 0), rigConfig{})
	newDevice(t, link, 1)
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	addrs := link.Port(1).Addrs()
	_, err := a.Dial(ctx, netip.AddrPortFrom(addrs[len(addrs)-1].Addr(), 1), a.qp, DialOptions{})
	if !errors.Is(err, context.DeadlineExceeded) || a.qp.State() != StateInit {
		t.Errorf("%v, QP in %v", err, a.qp.State())
	}
}

// Messages of the connection manager are lost and repeated like any others.
func TestDialOverLossyLink(t *testing.T) {
	k := newTalkers(t, rigConfig{link: loopback.Config{Seed: 3, Plan: loopback.Plan{Loss: 0.1, Duplicate: 0.2}}})
	l := k.listen(t)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		r, err := l.Accept(ctx)
		if err != nil {
			t.Errorf("Accept: %v", err)
			return
		}
		if _, err := r.Accept(ctx, k.b.qp, AcceptOptions{}); err != nil {
			t.Errorf("Request.Accept: %v", err)
		}
	}()
	if _, err := k.a.Dial(ctx, k.addr, k.a.qp, DialOptions{}); err != nil {
		t.Error(err)
	}
	<-done
}

// A datagram QP is found by its port (SIDR), and a message reaches it.
func TestResolveUD(t *testing.T) {
	k := newTalkers(t, rigConfig{typ: UD})
	for _, q := range []*QP{k.a.qp, k.b.qp} {
		if err := q.Activate(QKeyUDP); err != nil {
			t.Fatal(err)
		}
	}
	ctx := within(t)
	var no *RejectError
	if _, err := k.a.ResolveUD(ctx, k.addr, nil); !errors.As(err, &no) || no.Reason != RejectNoListener || !errors.Is(err, ErrRefused) {
		t.Errorf("nobody listens: %v", err)
	}
	l, err := k.b.ListenUD(netip.AddrPortFrom(netip.Addr{}, testPort), ListenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		r, err := l.Accept(ctx)
		if err == nil {
			err = r.Reject([]byte("not now"))
		}
		if err == nil {
			r, err = l.Accept(ctx)
		}
		if err == nil {
			if e := r.RejectWith(RejectNoResources, nil); !errors.Is(e, ErrReason) {
				t.Errorf("a reason that datagrams do not know: %v", e)
			}
			err = r.RejectWith(RejectNoQP, nil)
		}
		if err == nil {
			r, err = l.Accept(ctx)
		}
		if err == nil {
			err = r.AnswerUD(k.b.qp, []byte("here"))
		}
		if err != nil {
			t.Errorf("answer: %v", err)
		}
	}()
	if _, err := k.a.ResolveUD(ctx, k.addr, nil); !errors.As(err, &no) || no.Reason != RejectConsumer || !bytes.HasPrefix(no.PrivateData, []byte("not now")) {
		t.Errorf("refused: %v %+v", err, no)
	}
	if _, err := k.a.ResolveUD(ctx, k.addr, nil); !errors.As(err, &no) || no.Reason != RejectNoQP {
		t.Errorf("refused for want of a QP: %v", err)
	}
	p, err := k.a.ResolveUD(ctx, k.addr, []byte("where?"))
	if err != nil {
		t.Fatal(err)
	}
	if p.QPN != k.b.qp.QPN() || p.QKey != QKeyUDP || !bytes.HasPrefix(p.PrivateData, []byte("here")) {
		t.Errorf("%+v", p)
	}
	if err := k.b.qp.PostRecv(RecvWR{SGEs: []SGE{k.b.mr.SGE(0, 100)}}); err != nil {
		t.Fatal(err)
	}
	copy(k.a.mr.Bytes(), "hello")
	if err := k.a.qp.PostSend(SendWR{Op: OpSend, SGEs: []SGE{k.a.mr.SGE(0, 5)}, AH: p.AH, RemoteQPN: p.QPN, RemoteQKey: p.QKey}); err != nil {
		t.Fatal(err)
	}
	if wc := poll(t, 1, k.b.cq, k.a.cq); wc[0].Status != Success || string(k.b.mr.Bytes()[40:45]) != "hello" {
		t.Errorf("%v %q", wc[0].Status, k.b.mr.Bytes()[40:45])
	}
}

// A listener that closes refuses those who wait in its queue, and lets its callers go.
func TestListenerClose(t *testing.T) {
	k := newTalkers(t, rigConfig{})
	l := k.listen(t)
	if _, err := k.b.Listen(netip.AddrPortFrom(netip.Addr{}, testPort), ListenOptions{}); err == nil {
		t.Error("two listeners on one port")
	}
	if _, err := k.b.Listen(netip.MustParseAddrPort("192.0.2.77:1"), ListenOptions{}); !errors.Is(err, ErrNoGID) {
		t.Errorf("a stranger's address: %v", err)
	}
	ctx := within(t)
	dialed := make(chan error)
	go func() {
		_, err := k.a.Dial(ctx, k.addr, k.a.qp, DialOptions{})
		dialed <- err
	}()
	for !l.queue.pending() && ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	var no *RejectError
	if err := <-dialed; !errors.As(err, &no) {
		t.Errorf("the request in the queue: %v", err)
	}
	if _, err := l.Accept(ctx); !errors.Is(err, ErrClosed) {
		t.Errorf("Accept on a closed listener: %v", err)
	}
}
