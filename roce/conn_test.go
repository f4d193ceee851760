package roce

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorxe/gorxe/loopback"
)

// connPair is two devices whose QPs are not connected. b listens at addr.
type connPair struct {
	link *loopback.Link
	a, b *end
	addr netip.AddrPort
}

const testPort = 7174

func newConnPair(t *testing.T, c rigConfig) connPair {
	t.Helper()
	link := newLink(t, c.link)
	a, b := newEnd(t, newDevice(t, link, 0, c.opts...), c), newEnd(t,
		newDevice(t, link, 1, c.opts...), c)
	return connPair{link, a, b,
		netip.AddrPortFrom(link.Port(1).Addrs()[len(link.Port(1).Addrs())-1].Addr(), testPort)}
}

func (k connPair) listen(t *testing.T) *Listener {
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

func forModes(t *testing.T, f func(t *testing.T, k connPair)) {
	for _, auto := range []Progress{Auto, Manual} {
		t.Run(auto.String(), func(t *testing.T) {
			f(t, newConnPair(t, rigConfig{opts: []Option{WithProgress(auto)}}))
		})
	}
}

// Dial sends from the address that the route selects, or from the one that GIDIndex selects.
func TestDialSourceAddress(t *testing.T) {
	link := newLink(t, loopback.Config{})
	addrs := func(last string) (list []netip.Prefix) {
		for _, subnet := range []string{"10.77.1.", "10.77.2."} {
			list = append(list, netip.MustParsePrefix(subnet+last+"/24"))
		}
		return list
	}
	for i, last := range []string{"1", "2"} {
		link.Port(i).SetAddrs(addrs(last)...)
	}
	a, b := newDevice(t, link, 0), newDevice(t, link, 1)
	l, err := b.Listen(netip.AddrPortFrom(netip.Addr{}, testPort), ListenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	first := 0
	for _, c := range []struct {
		index      *int
		dial, want string
	}{{nil, "10.77.1.2", "10.77.1.1"}, {nil, "10.77.2.2", "10.77.2.1"},
		{&first, "10.77.2.2", "10.77.1.1"}} {
		ctx := within(t)
		accepted := make(chan netip.Addr, 1)
		server := newEnd(t, b, rigConfig{})
		go func() {
			defer close(accepted)
			r, err := l.Accept(ctx)
			if err == nil {
				_, err = r.Accept(ctx, server.qp, AcceptOptions{})
			}
			if err != nil {
				t.Errorf("Accept: %v", err)
				return
			}
			accepted <- r.RemoteAddr().Addr()
		}()
		client := newEnd(t, a, rigConfig{qp: QPConfig{GIDIndex: c.index}})
		conn, err := a.Dial(ctx, netip.AddrPortFrom(netip.MustParseAddr(c.dial), testPort),
			client.qp, DialOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if got := conn.LocalAddr().Addr().String(); got != c.want {
			t.Errorf("Dial(%s) used the address %s, want %s", c.dial, got, c.want)
		}
		if got := (<-accepted).String(); got != c.want {
			t.Errorf("Dial(%s) sent the request from %s, want %s", c.dial, got, c.want)
		}
	}
}

// A connection with private data in both directions: request, accept, transfer, disconnect.
func TestDialAndListen(t *testing.T) {
	forModes(t, func(t *testing.T, k connPair) {
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
				t.Errorf("request from %v with private data %q", r.RemoteAddr(), r.PrivateData())
			}
			if r.Params().QPN != k.a.qp.QPN() || r.Params().InitiatorDepth != 5 {
				t.Errorf("request = %+v", r.Params())
			}
			c, err := r.Accept(ctx, k.b.qp, AcceptOptions{PrivateData: []byte("you may")})
			if err != nil {
				t.Errorf("Request.Accept: %v", err)
				return
			}
			accepted <- c
		}()
		a, err := k.a.Dial(ctx, k.addr, k.a.qp,
			DialOptions{PrivateData: []byte("may I?"),
				ConnectOptions: ConnectOptions{MaxRdAtomic: 5}})
		if err != nil {
			t.Fatal(err)
		}
		b := <-accepted
		if b == nil {
			t.FailNow()
		}
		if !bytes.HasPrefix(a.PrivateData(), []byte("you may")) || a.RemoteAddr() != k.addr {
			t.Errorf("reply from %v with private data %q", a.RemoteAddr(), a.PrivateData())
		}
		if at, _ := k.b.qp.Query(); at.MaxDestRdAtomic != 5 || at.State != StateRTS {
			t.Errorf("b: MaxDestRdAtomic %d in %v, want 5 in RTS", at.MaxDestRdAtomic, at.State)
		}
		copy(k.a.mr.Bytes(), "over the wire")
		if err := k.a.qp.PostSend(SendWR{Op: OpWrite, Flags: Signaled,
			SGEs: []SGE{k.a.mr.SGE(0, 13)}, RemoteAddr: k.b.mr.Addr() + 100,
			RKey: k.b.mr.RKey()}); err != nil {
			t.Fatal(err)
		}
		if wc := poll(t, 1, k.a.cq, k.b.cq); wc[0].Status != Success ||
			string(k.b.mr.Bytes()[100:113]) != "over the wire" {
			t.Errorf("%v: %q", wc[0].Status, k.b.mr.Bytes()[100:113])
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		eventually(t, "end of the connection", func() bool {
			k.a.Progress()
			k.b.Progress()
			return isDone(a)
		})
		if k.a.qp.State() != StateErr || k.b.qp.State() != StateErr {
			t.Errorf("after the end: QPs in %v and %v, want ERR", k.a.qp.State(), k.b.qp.State())
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

// drive drives both devices in the background, for tests in which one side only waits.
func (k connPair) drive(t *testing.T) {
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				if k.a.Progress()+k.b.Progress() == 0 {
					runtime.Gosched()
				}
			}
		}
	})
	t.Cleanup(func() { close(stop); wg.Wait() })
}

// A RejectError carries the reason: no listener (reason 8), or the reason and private data of the
// application.
func TestDialRefused(t *testing.T) {
	forModes(t, func(t *testing.T, k connPair) {
		k.drive(t)
		ctx := within(t)
		_, err := k.a.Dial(ctx, k.addr, k.a.qp, DialOptions{})
		var no *RejectError
		if !errors.As(err, &no) || no.Reason != RejectNoListener || !errors.Is(err, ErrRefused) {
			t.Errorf("no listener: %v", err)
		}
		if want := "roce: connection refused: invalid service ID (reason 8): no listener on that port"; no.Error() != want {
			t.Errorf("error %q, want %q", no, want)
		}
		l := k.listen(t)
		go func() {
			if r, err := l.Accept(ctx); err == nil {
				err = r.Reject([]byte("too busy"))
				if err != nil {
					t.Errorf("Reject: %v", err)
				}
			}
		}()
		_, err = k.a.Dial(ctx, k.addr, k.a.qp, DialOptions{}) // the QP is still in INIT
		if !errors.As(err, &no) || no.Reason != RejectConsumer ||
			!bytes.HasPrefix(no.PrivateData, []byte("too busy")) {
			t.Errorf("refused: %v %+v", err, no)
		}
		go func() {
			r, err := l.Accept(ctx)
			if err != nil {
				return // Dial fails
			}
			if err := r.RejectWith(RejectStale, nil); !errors.Is(err, ErrReason) {
				t.Errorf("reason for the connection manager only: %v", err)
			}
			if err := r.RejectWith(RejectNoResources, []byte("full")); err != nil {
				t.Errorf("RejectWith: %v", err)
			}
		}()
		_, err = k.a.Dial(ctx, k.addr, k.a.qp, DialOptions{})
		if !errors.As(err, &no) || no.Reason != RejectNoResources ||
			!bytes.HasPrefix(no.PrivateData, []byte("full")) {
			t.Errorf("refused with RejectNoResources: %v %+v", err, no)
		}
		if _, err := k.a.Dial(ctx, k.addr, k.a.qp,
			DialOptions{PrivateData: make([]byte, 57)}); err == nil ||
			!strings.Contains(err.Error(), "private data") {
			t.Errorf("57 bytes of private data: %v", err)
		}
	})
}

// Dial refuses addresses that are not unicast, and names them in the error.
func TestDialInvalidAddress(t *testing.T) {
	k := newConnPair(t, rigConfig{})
	for _, addr := range []netip.AddrPort{{}, netip.MustParseAddrPort("224.0.0.1:9"),
		netip.MustParseAddrPort("[::]:9"), netip.AddrPortFrom(k.addr.Addr(), 0)} {
		if _, err := k.a.Dial(within(t), addr, k.a.qp, DialOptions{}); !errors.Is(err,
			ErrInvalid) || !strings.Contains(err.Error(), addr.String()) {
			t.Errorf("Dial %v: %v", addr, err)
		}
		if _, err := k.a.ResolveUD(within(t), addr, nil); !errors.Is(err, ErrInvalid) {
			t.Errorf("ResolveUD %v: %v", addr, err)
		}
	}
	if _, err := k.a.Dial(within(t), netip.MustParseAddrPort("192.0.2.1:9"), k.a.qp,
		DialOptions{}); !errors.Is(err, ErrUnreachable) || !errors.Is(err, ErrNoRoute) ||
		!strings.Contains(err.Error(), "192.0.2.1: ") {
		t.Errorf("unknown address: %v", err)
	}
}

// Dial and Connect refuse options that are out of range before they send or change anything.
func TestOptionsOutOfRange(t *testing.T) {
	k := newConnPair(t, rigConfig{})
	for _, o := range []ConnectOptions{
		{MinRNRTimer: 32}, {MinRNRTimer: 300}, {MaxRdAtomic: MaxRdAtomic + 1},
		{MaxDestRdAtomic: 300}, {Timeout: 32}, {Retries: 8}, {RNRRetries: 8}, {Access: MWBind},
	} {
		_, err := k.a.Dial(within(t), k.addr, k.a.qp, DialOptions{ConnectOptions: o})
		if !errors.Is(err, ErrConnParams) {
			t.Errorf("Dial with %+v: %v", o, err)
		}
		err = k.a.qp.Connect(within(t), k.b.qp.Local(), o)
		if !errors.Is(err, ErrConnParams) || !errors.Is(err, ErrInvalidAttr) {
			t.Errorf("Connect with %+v: %v", o, err)
		}
		if s := k.a.qp.State(); s != StateInit {
			t.Fatalf("the QP is in %v after %+v", s, o)
		}
	}
	if n := k.a.Counters().CM.Sent[0]; n != 0 {
		t.Errorf("%d requests sent", n)
	}
}

// Accept refuses options that are out of range, and the peer.
func TestAcceptOptionsOutOfRange(t *testing.T) {
	k := newConnPair(t, rigConfig{})
	l := k.listen(t)
	got := make(chan error, 1)
	go func() {
		r, err := l.Accept(within(t))
		if err == nil {
			_, err = r.Accept(within(t), k.b.qp,
				AcceptOptions{ConnectOptions: ConnectOptions{MinRNRTimer: 32}})
		}
		got <- err
	}()
	if _, err := k.a.Dial(within(t), k.addr, k.a.qp, DialOptions{}); !errors.Is(err, ErrRefused) {
		t.Errorf("Dial: %v", err)
	}
	if err := <-got; !errors.Is(err, ErrConnParams) {
		t.Errorf("Accept: %v", err)
	}
}

// Port 0 is replaced by a free port, a different one for each listener.
func TestListenOnAnyPort(t *testing.T) {
	k := newConnPair(t, rigConfig{})
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
		if _, err := k.a.Dial(ctx, l.Addr(), k.a.qp, DialOptions{}); !errors.As(err, &no) ||
			!bytes.HasPrefix(no.PrivateData, []byte("it is me")) {
			t.Errorf("%v: %v", l.Addr(), err)
		}
		break
	}
	// The address of a listener on all addresses can be dialed.
	l, err := k.b.ListenUD(netip.AddrPort{}, ListenOptions{})
	if err != nil || l.Addr().Port() < 0xc000 {
		t.Errorf("%v, %v", l, err)
	}
	go func() {
		if r, err := l.Accept(ctx); err == nil {
			_ = r.Reject(nil)
		}
	}()
	if _, err := k.a.ResolveUD(ctx, l.Addr(), nil); !errors.Is(err, ErrRefused) {
		t.Errorf("ResolveUD(%v) = %v", l.Addr(), err)
	}
}

// Dial returns when its context ends, and the QP can dial again.
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

// The connection manager retransmits lost messages.
func TestDialOverLossyLink(t *testing.T) {
	k := newConnPair(t, rigConfig{link: loopback.Config{Seed: 3,
		Plan: loopback.Plan{Loss: 0.1, Duplicate: 0.2}}})
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

// ResolveUD finds a datagram QP by its port (SIDR), and a message reaches it.
func TestResolveUD(t *testing.T) {
	k := newConnPair(t, rigConfig{typ: UD})
	for _, q := range []*QP{k.a.qp, k.b.qp} {
		if err := q.Activate(QKeyUDP); err != nil {
			t.Fatal(err)
		}
	}
	ctx := within(t)
	var no *RejectError
	if _, err := k.a.ResolveUD(ctx, k.addr, nil); !errors.As(err, &no) ||
		no.Reason != RejectNoListener || !errors.Is(err, ErrRefused) {
		t.Errorf("no listener: %v", err)
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
				t.Errorf("reason that SIDR does not have: %v", e)
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
	if _, err := k.a.ResolveUD(ctx, k.addr, nil); !errors.As(err, &no) ||
		no.Reason != RejectConsumer || !bytes.HasPrefix(no.PrivateData, []byte("not now")) {
		t.Errorf("refused: %v %+v", err, no)
	}
	if _, err := k.a.ResolveUD(ctx, k.addr, nil); !errors.As(err, &no) || no.Reason != RejectNoQP {
		t.Errorf("refused with RejectNoQP: %v", err)
	}
	p, err := k.a.ResolveUD(ctx, k.addr, []byte("where?"))
	if err != nil {
		t.Fatal(err)
	}
	if p.QPN != k.b.qp.QPN() || p.QKey != QKeyUDP ||
		!bytes.HasPrefix(p.PrivateData, []byte("here")) {
		t.Errorf("%+v", p)
	}
	if err := k.b.qp.PostRecv(RecvWR{SGEs: []SGE{k.b.mr.SGE(0, 100)}}); err != nil {
		t.Fatal(err)
	}
	copy(k.a.mr.Bytes(), "hello")
	if err := k.a.qp.PostSend(SendWR{Op: OpSend, SGEs: []SGE{k.a.mr.SGE(0, 5)}, AH: p.AH,
		RemoteQPN: p.QPN, RemoteQKey: p.QKey}); err != nil {
		t.Fatal(err)
	}
	if wc := poll(t, 1, k.b.cq, k.a.cq); wc[0].Status != Success ||
		string(k.b.mr.Bytes()[40:45]) != "hello" {
		t.Errorf("%v %q", wc[0].Status, k.b.mr.Bytes()[40:45])
	}
}

// Closing a listener refuses the requests in its queue and ends Accept.
func TestListenerClose(t *testing.T) {
	k := newConnPair(t, rigConfig{})
	l := k.listen(t)
	if _, err := k.b.Listen(netip.AddrPortFrom(netip.Addr{}, testPort),
		ListenOptions{}); err == nil {
		t.Error("two listeners on one port: no error")
	}
	if _, err := k.b.Listen(netip.MustParseAddrPort("192.0.2.77:1"),
		ListenOptions{}); !errors.Is(err, ErrNoGID) {
		t.Errorf("address of another host: %v", err)
	}
	ctx := within(t)
	dialed := make(chan error)
	go func() {
		_, err := k.a.Dial(ctx, k.addr, k.a.qp, DialOptions{})
		dialed <- err
	}()
	eventually(t, "request in the queue", l.queue.pending)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	var no *RejectError
	if err := <-dialed; !errors.As(err, &no) {
		t.Errorf("request in the queue: %v", err)
	}
	if _, err := l.Accept(ctx); !errors.Is(err, ErrClosed) {
		t.Errorf("Accept on a closed listener: %v", err)
	}
}
