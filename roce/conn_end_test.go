package roce

import (
	"context"
	"encoding/binary"
	"errors"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce/cm"
)

// attribute returns the kind of CM message in a frame, 0 if there is none. The MAD is at the end of
// the packet, before the ICRC.
func attribute(f []byte) cm.Attribute {
	mad := len(f) - bth.ICRCLen - cm.MADLen
	if mad < 0 || f[mad+1] != 7 { // management class: communication management
		return 0
	}
	return cm.Attribute(binary.BigEndian.Uint16(f[mad+16:]))
}

// dropFirst drops the first n frames with CM message a on one direction of the link, and counts all
// of them.
func dropFirst(k connPair, from, to int, a cm.Attribute, n int32) *atomic.Int32 {
	seen := new(atomic.Int32)
	k.link.SetFilter(from, to, func(f []byte) loopback.Action {
		if attribute(f) == a && seen.Add(1) <= n {
			return loopback.Drop
		}
		return loopback.Pass
	})
	return seen
}

// meet connects the QPs: a dials.
func (k connPair) meet(t *testing.T) (a, b *Conn) {
	t.Helper()
	return k.meetWith(t, ConnectOptions{})
}

// acceptOne accepts the next connection of l with b's QP. It returns the result.
func (k connPair) acceptOne(ctx context.Context, l *Listener) <-chan error {
	done := make(chan error, 1)
	go func() {
		r, err := l.Accept(ctx)
		if err == nil {
			_, err = r.Accept(ctx, k.b.qp, AcceptOptions{})
		}
		done <- err
	}()
	return done
}

// ends checks that c ends with an error.
func ends(t *testing.T, c *Conn, want error) {
	t.Helper()
	select {
	case <-c.Done():
	case <-time.After(deadline):
		t.Fatalf("the connection has not ended after %v", deadline)
	}
	if !errors.Is(c.Err(), want) {
		t.Errorf("Err() = %v, want %v", c.Err(), want)
	}
	if st := c.QP().State(); st != StateErr && !c.QP().closed.Load() {
		t.Errorf("the QP is in %v, want ERR", st)
	}
}

// A Conn returns both addresses, and why it ended.
func TestConnAddressesAndErr(t *testing.T) {
	k := newConnPair(t, rigConfig{})
	a, b := k.meet(t)
	if a.LocalAddr() != b.RemoteAddr() || b.LocalAddr() != a.RemoteAddr() ||
		b.LocalAddr() != k.addr {
		t.Errorf("a: %v to %v, b: %v to %v", a.LocalAddr(), a.RemoteAddr(), b.LocalAddr(),
			b.RemoteAddr())
	}
	if a.Err() != nil || b.Err() != nil {
		t.Errorf("before the end: Err() = %v and %v, want nil", a.Err(), b.Err())
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	ends(t, a, ErrClosed)
	ends(t, b, ErrDisconnected)
	if err := errors.Join(a.Close(), a.Abort(), b.Abort(), b.Close()); err != nil {
		t.Error(err)
	}
}

// When one side closes its Conn, QP or Device, the other side's Conn ends, too.
func TestConnEndsWithQPOrDevice(t *testing.T) {
	for name, end := range map[string]func(k connPair, b *Conn) error{
		"Abort": func(_ connPair, b *Conn) error { return b.Abort() },
		"QP.Close": func(_ connPair,
			b *Conn) error {
			return errors.Join(b.QP().Close(), b.Close())
		},
		"QP to ERR": func(_ connPair,
			b *Conn) error {
			return b.QP().Modify(&Attr{State: StateErr}, AttrState)
		},
		"Device.Close": func(k connPair,
			b *Conn) error {
			return errors.Join(k.b.Close(), b.Close(), b.QP().Close())
		},
	} {
		t.Run(name, func(t *testing.T) {
			k := newConnPair(t, rigConfig{})
			a, b := k.meet(t)
			if err := end(k, b); err != nil {
				t.Error(err)
			}
			want := ErrClosed
			if name == "QP to ERR" {
				want = ErrConnLost
			}
			ends(t, b, want)
			ends(t, a, ErrDisconnected)
		})
	}
}

// Everything is closed at the same time by different goroutines.
func TestConnClosedConcurrently(t *testing.T) {
	for range 5 {
		k := newConnPair(t, rigConfig{})
		a, b := k.meet(t)
		l := k.listen(t)
		done := make(chan error)
		closers := []func() error{a.Close, a.Abort, a.QP().Close, k.a.Close, b.Close, b.QP().Close,
			b.Abort, l.Close, k.b.Close}
		for _, f := range closers {
			go func() { done <- f() }()
		}
		for range closers {
			if err := <-done; err != nil && !errors.Is(err, ErrClosed) {
				t.Error(err)
			}
		}
		<-a.Done()
		<-b.Done()
	}
}

// If the RTU is lost, the first message on the QP establishes the connection (COMM_EST, IBA 12.9).
func TestLostRTU(t *testing.T) {
	bothModes(t, func(t *testing.T, p Progress) {
		k := newConnPair(t, rigConfig{opts: []Option{WithProgress(p)}})
		seen := dropFirst(k, 0, 1, cm.AttrRTU, 1)
		l := k.listen(t)
		ctx := within(t)
		accepted := make(chan error, 1)
		go func() {
			r, err := l.Accept(ctx)
			if err == nil {
				err = k.b.qp.PostRecv(RecvWR{SGEs: []SGE{k.b.mr.SGE(0, 8)}})
			}
			if err == nil {
				_, err = r.Accept(ctx, k.b.qp, AcceptOptions{})
			}
			accepted <- err
		}()
		if _, err := k.a.Dial(ctx, k.addr, k.a.qp, DialOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := k.a.qp.PostSend(SendWR{Op: OpSend, Flags: Signaled,
			SGEs: []SGE{k.a.mr.SGE(0, 8)}}); err != nil {
			t.Fatal(err)
		}
		poll(t, 1, k.a.cq, k.b.cq)
		if err := <-accepted; err != nil {
			t.Error(err)
		}
		if n, reps := seen.Load(), k.b.Counters().CM.Sent[cm.AttrREP.Index()]; n != 1 || reps != 1 {
			t.Errorf("established after %d RTUs and %d REPs, want 1 and 1", n, reps)
		}
	})
}

// A lost DREQ is retransmitted, even though the QP is closed by then.
func TestLostDREQ(t *testing.T) {
	k := newConnPair(t, rigConfig{})
	a, b := k.meet(t)
	seen := dropFirst(k, 0, 1, cm.AttrDREQ, 1)
	if err := errors.Join(a.Close(), a.QP().Close()); err != nil {
		t.Error(err)
	}
	ends(t, b, ErrDisconnected)
	if seen.Load() != 2 {
		t.Errorf("%d DREQs, want 2", seen.Load())
	}
}

// If the peer vanishes, the retries of the QP are exhausted and the Conn ends.
func TestPeerKilled(t *testing.T) {
	k := newConnPair(t, rigConfig{})
	l := k.listen(t)
	ctx := within(t)
	go func() {
		if r, err := l.Accept(ctx); err == nil {
			_, _ = r.Accept(ctx, k.b.qp, AcceptOptions{})
		}
	}()
	a, err := k.a.Dial(ctx, k.addr, k.a.qp,
		DialOptions{ConnectOptions: ConnectOptions{Timeout: 10, Retries: 1}})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		if err := k.link.SetPlan(i, 1-i, loopback.Plan{Loss: 1}); err != nil {
			t.Fatal(err)
		}
	}
	if err := k.a.qp.PostSend(SendWR{Op: OpWrite, Flags: Signaled, SGEs: []SGE{k.a.mr.SGE(0, 8)},
		RemoteAddr: k.b.mr.Addr(), RKey: k.b.mr.RKey()}); err != nil {
		t.Fatal(err)
	}
	ends(t, a, ErrConnLost)
	if wc := poll(t, 1, k.a.cq); wc[0].Status != RetryExcErr {
		t.Errorf("%v", wc[0].Status)
	}
}

// The end of ctx ends Dial and Accept in every phase. The side that sees it first sends a REJ,
// which may reach the other side before that sees the end of ctx.
func TestDialCanceled(t *testing.T) {
	ended := func(err error) bool {
		return errors.Is(err, context.Canceled) || errors.Is(err, ErrRefused)
	}
	bothModes(t, func(t *testing.T, p Progress) {
		for _, lost := range []cm.Attribute{cm.AttrREQ, cm.AttrREP, cm.AttrRTU} {
			k := newConnPair(t, rigConfig{opts: []Option{WithProgress(p)}})
			from := 0
			if lost == cm.AttrREP {
				from = 1
			}
			seen := dropFirst(k, from, 1-from, lost, 1<<30)
			l := k.listen(t)
			ctx, cancel := context.WithCancel(context.Background())
			accepted := k.acceptOne(ctx, l)
			var canceler sync.WaitGroup
			canceler.Go(func() {
				defer cancel()
				eventually(t, "lost message", func() bool { return seen.Load() > 0 })
			})
			defer canceler.Wait()
			c, err := k.a.Dial(ctx, k.addr, k.a.qp, DialOptions{})
			if lost == cm.AttrRTU {
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
			} else if !ended(err) || k.a.qp.State() != StateInit {
				t.Errorf("%v lost: Dial: %v, QP in %v", lost, err, k.a.qp.State())
			}
			if err := <-accepted; !ended(err) {
				t.Errorf("%v lost: Accept: %v", lost, err)
			}
			if st := k.b.qp.State(); lost != cm.AttrREQ && st != StateErr {
				t.Errorf("%v lost: the accepted QP is in %v", lost, st)
			}
		}
	})
}

// If the listener refuses the path MTU, Dial tries again with the one that the listener supports.
func TestDialAgainWithSmallerMTU(t *testing.T) {
	k := newConnPair(t, rigConfig{})
	if err := k.link.Port(1).SetMTU(1500); err != nil {
		t.Fatal(err)
	}
	eventually(t, "path MTU 1024", func() bool { return k.b.Info().ActiveMTU == 1024 })
	l := k.listen(t)
	ctx := within(t)
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		for range 2 {
			r, err := l.Accept(ctx)
			if err != nil {
				t.Errorf("Accept: %v", err)
				return
			}
			_, err = r.Accept(ctx, k.b.qp, AcceptOptions{})
			if errors.Is(err, ErrMTU) != (r.Params().MTU > 1024) {
				t.Errorf("MTU %d: %v", r.Params().MTU, err)
			}
			// The text must not ask to change the interface, which is fine.
			if errors.Is(err, ErrMTU) &&
				!strings.Contains(err.Error(),
					"asks for path MTU 4096, but this side supports at most 1024") {
				t.Errorf("unexpected error %q", err)
			}
		}
	}()
	if _, err := k.a.Dial(ctx, k.addr, k.a.qp, DialOptions{}); err != nil {
		t.Fatal(err)
	}
	<-answered
	if at, _ := k.a.qp.Query(); at.PathMTU != 1024 {
		t.Errorf("path MTU %d, want 1024", at.PathMTU)
	}
}

// A request is answered once, by the right method, with private data that fits.
func TestAnswerOnce(t *testing.T) {
	k := newConnPair(t, rigConfig{})
	l := k.listen(t)
	ctx := within(t)
	dialed := make(chan error, 1)
	go func() {
		_, err := k.a.Dial(ctx, k.addr, k.a.qp, DialOptions{})
		dialed <- err
	}()
	r, err := l.Accept(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Reject(make([]byte, cm.REJPrivateLen+1)); !errors.Is(err, cm.ErrPrivateData) {
		t.Errorf("private data of Reject too long: %v", err)
	}
	if err := r.AnswerUD(activeUD(t, k.b), nil); !errors.Is(err, ErrInvalid) {
		t.Errorf("AnswerUD: %v", err)
	}
	if err := r.AnswerUD(k.b.qp, nil); !errors.Is(err, ErrInvalid) {
		t.Errorf("AnswerUD with an RC QP: %v", err)
	}
	if _, err := r.Accept(ctx, k.b.qp,
		AcceptOptions{PrivateData: make([]byte, cm.REPPrivateLen+1)}); !errors.Is(err,
		cm.ErrPrivateData) {
		t.Errorf("private data of Accept too long: %v", err)
	}
	for _, mtu := range []MTU{1500, 9000} {
		if err := (&Request{dev: k.b.Device, req: r.req}).check(k.b.qp,
			&AcceptOptions{ConnectOptions: ConnectOptions{MTU: mtu}}); !errors.Is(err, ErrInvalid) {
			t.Errorf("accept with path MTU %d: %v", mtu, err)
		}
		if _, err := k.a.Dial(ctx, k.addr, k.a.qp,
			DialOptions{ConnectOptions: ConnectOptions{MTU: mtu}}); !errors.Is(err, ErrInvalid) {
			t.Errorf("dial with path MTU %d: %v", mtu, err)
		}
	}
	if err := <-dialed; !errors.Is(err, ErrRefused) || k.b.qp.State() != StateInit {
		t.Errorf("Dial: %v; the listener's QP is in %v", err, k.b.qp.State())
	}
	if _, err := r.Accept(ctx, k.b.qp, AcceptOptions{}); !errors.Is(err, ErrAnswered) {
		t.Errorf("second answer: %v", err)
	}
	if err := r.Reject(nil); !errors.Is(err, ErrAnswered) {
		t.Errorf("third answer: %v", err)
	}
}

// Whatever is closed while a connection is being set up, in every phase: Dial and Accept return an
// error or a Conn that ends.
func TestCloseWhileDialing(t *testing.T) {
	closers := map[string]func(k connPair, l *Listener) error{
		"dialer's QP":       func(k connPair, _ *Listener) error { return k.a.qp.Close() },
		"dialer's device":   func(k connPair, _ *Listener) error { return k.a.Close() },
		"acceptor's QP":     func(k connPair, _ *Listener) error { return k.b.qp.Close() },
		"acceptor's device": func(k connPair, _ *Listener) error { return k.b.Close() },
		"listener":          func(_ connPair, l *Listener) error { return l.Close() },
	}
	bothModes(t, func(t *testing.T, p Progress) {
		leakCheck(t)
		for name, closeIt := range closers {
			for phase := range int32(4) { // CM messages before the close: none, REQ, REP, RTU
				k := newConnPair(t, rigConfig{opts: []Option{WithProgress(p)}})
				l := k.listen(t)
				messages := new(atomic.Int32)
				for i := range 2 {
					k.link.SetFilter(i, 1-i, func(f []byte) loopback.Action {
						if attribute(f) != 0 {
							messages.Add(1)
						}
						return loopback.Pass
					})
				}
				ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
				conns := make(chan *Conn, 2)
				var all sync.WaitGroup
				all.Go(func() {
					if r, err := l.Accept(ctx); err == nil {
						if c, err := r.Accept(ctx, k.b.qp, AcceptOptions{}); err == nil {
							conns <- c
						}
					}
				})
				all.Go(func() {
					if c, err := k.a.Dial(ctx, k.addr, k.a.qp, DialOptions{}); err == nil {
						conns <- c
					}
				})
				all.Go(func() {
					for messages.Load() < phase && ctx.Err() == nil {
						runtime.Gosched()
					}
					if err := closeIt(k, l); err != nil {
						t.Errorf("%s: %v", name, err)
					}
				})
				all.Wait()
				cancel()
				close(conns)
				for c := range conns {
					if err := c.Close(); err != nil {
						t.Errorf("%s: Conn.Close: %v", name, err)
					}
					<-c.Done()
				}
				if err := errors.Join(l.Close(), k.a.qp.Close(), k.b.qp.Close(), k.a.Close(),
					k.b.Close()); err != nil && !errors.Is(err, ErrClosed) {
					t.Errorf("%s: %v", name, err)
				}
			}
		}
	})
}

// A NAK of the peer ends the connection on both sides. The NAK and the peer's DREQ may come in one
// batch: the first one decides the error.
func TestRefusedRequestEndsConn(t *testing.T) {
	k := newConnPair(t, rigConfig{opts: []Option{WithProgress(Manual)}})
	a, b := k.meet(t)
	for range 20 { // until nothing is in flight
		k.a.Progress()
		k.b.Progress()
	}
	must(t, k.a.qp.PostSend(SendWR{ID: 1, Op: OpWrite, Flags: Signaled,
		SGEs: []SGE{k.a.mr.SGE(0, 8)}, RemoteAddr: k.b.mr.Addr(), RKey: k.b.mr.RKey() + 1}))
	k.a.Progress()
	for range 20 {
		k.b.Progress()
	}
	ends(t, b, ErrConnLost)
	k.a.Progress()
	ends(t, a, ErrConnLost)
	if wc := poll(t, 1, k.a.cq); wc[0].Status != RemAccessErr {
		t.Errorf("%v", wc[0].Status)
	}
}
