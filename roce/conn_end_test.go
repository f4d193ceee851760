package roce

import (
	"context"
	"encoding/binary"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce/cm"
)

// attribute is the CM message in a frame, 0 if it is none: the MAD ends the packet, before the ICRC.
func attribute(f []byte) cm.Attribute {
	mad := len(f) - bth.ICRCLen - cm.MADLen
	if mad < 0 || f[mad+1] != 7 { // management class: communication management
		return 0
	}
	return cm.Attribute(binary.BigEndian.Uint16(f[mad+16:]))
}

// loseFirst drops the first n frames with a CM message from a to b, and counts all of them.
func loseFirst(k talkers, from, to int, a cm.Attribute, n int32) *atomic.Int32 {
	seen := new(atomic.Int32)
	k.link.SetFilter(from, to, func(f []byte) loopback.Action {
		if attribute(f) == a && seen.Add(1) <= n {
			return loopback.Drop
		}
		return loopback.Pass
	})
	return seen
}

// meet connects the two ends' QPs: a dials.
func (k talkers) meet(t *testing.T) (a, b *Conn) {
	t.Helper()
	l := k.listen(t)
	ctx := within(t)
	accepted := make(chan *Conn, 1)
	go func() {
		defer close(accepted)
		r, err := l.Accept(ctx)
		if err == nil {
			var c *Conn
			if c, err = r.Accept(ctx, k.b.qp, AcceptOptions{}); err == nil {
				accepted <- c
			}
		}
		if err != nil {
			t.Errorf("accept: %v", err)
		}
	}()
	a, err := k.a.Dial(ctx, k.addr, k.a.qp, DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if b = <-accepted; b == nil {
		t.FailNow()
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	return a, b
}

func ends(t *testing.T, c *Conn, why error) {
	t.Helper()
	select {
	case <-c.Done():
	case <-time.After(deadline):
		t.Fatalf("the connection does not end")
	}
	if !errors.Is(c.Err(), why) {
		t.Errorf("it ended with %v, want %v", c.Err(), why)
	}
	if st := c.QP().State(); st != StateErr && !c.QP().closed.Load() {
		t.Errorf("its QP is in %v", st)
	}
}

// Each end knows who it is, whom it talks to, and, when it is over, why.
func TestConnAddressesAndErr(t *testing.T) {
	k := newTalkers(t, rigConfig{})
	a, b := k.meet(t)
	if a.LocalAddr() != b.RemoteAddr() || b.LocalAddr() != a.RemoteAddr() || b.LocalAddr() != k.addr {
		t.Errorf("a: %v to %v, b: %v to %v", a.LocalAddr(), a.RemoteAddr(), b.LocalAddr(), b.RemoteAddr())
	}
	if a.Err() != nil || b.Err() != nil {
		t.Errorf("while it lasts: %v and %v", a.Err(), b.Err())
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

// Whatever is closed, in whatever order, the other end hears of it and nothing hangs.
func TestConnEndsWithItsOwner(t *testing.T) {
	for name, end := range map[string]func(k talkers, b *Conn) error{
		"Abort":        func(_ talkers, b *Conn) error { return b.Abort() },
		"QP.Close":     func(_ talkers, b *Conn) error { return errors.Join(b.QP().Close(), b.Close()) },
		"QP to ERR":    func(_ talkers, b *Conn) error { return b.QP().Modify(&Attr{State: StateErr}, AttrState) },
		"Device.Close": func(k talkers, b *Conn) error { return errors.Join(k.b.Close(), b.Close(), b.QP().Close()) },
	} {
		t.Run(name, func(t *testing.T) {
			k := newTalkers(t, rigConfig{})
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

// All of it at once, from many goroutines: one ends it, nobody hangs, nothing races.
func TestConnClosedConcurrently(t *testing.T) {
	for range 5 {
		k := newTalkers(t, rigConfig{})
		a, b := k.meet(t)
		l := k.listen(t)
		done := make(chan error)
		closers := []func() error{a.Close, a.Abort, a.QP().Close, k.a.Close, b.Close, b.QP().Close, b.Abort, l.Close, k.b.Close}
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

// A RTU that is lost does not matter: the first message on the QP says as much (COMM_EST, IBA 12.9).
func TestLostRTU(t *testing.T) {
	bothModes(t, func(t *testing.T, p Progress) {
		k := newTalkers(t, rigConfig{opts: []Option{WithProgress(p)}})
		seen := loseFirst(k, 0, 1, cm.AttrRTU, 1)
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
		if err := k.a.qp.PostSend(SendWR{Op: OpSend, Flags: Signaled, SGEs: []SGE{k.a.mr.SGE(0, 8)}}); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		poll(t, 1, k.a.cq, k.b.cq)
		if err := <-accepted; err != nil {
			t.Error(err)
		}
		if seen.Load() != 1 || time.Since(start) > time.Second {
			t.Errorf("established after %d RTUs and %v, want it by the first message", seen.Load(), time.Since(start))
		}
	})
}

// A DREQ that is lost is repeated (here after one response time-out), though the QP is gone by then.
func TestLostDREQ(t *testing.T) {
	k := newTalkers(t, rigConfig{})
	a, b := k.meet(t)
	seen := loseFirst(k, 0, 1, cm.AttrDREQ, 1)
	if err := errors.Join(a.Close(), a.QP().Close()); err != nil {
		t.Error(err)
	}
	ends(t, b, ErrDisconnected)
	if seen.Load() != 2 {
		t.Errorf("%d DREQs", seen.Load())
	}
}

// A peer that is killed says nothing. Who has something for it finds out by its retries, and the Conn ends.
func TestPeerKilled(t *testing.T) {
	k := newTalkers(t, rigConfig{})
	l := k.listen(t)
	ctx := within(t)
	go func() {
		if r, err := l.Accept(ctx); err == nil {
			_, _ = r.Accept(ctx, k.b.qp, AcceptOptions{})
		}
	}()
	a, err := k.a.Dial(ctx, k.addr, k.a.qp, DialOptions{ConnectOptions: ConnectOptions{Timeout: 10, Retries: 1}})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		if err := k.link.SetPlan(i, 1-i, loopback.Plan{Loss: 1}); err != nil {
			t.Fatal(err)
		}
	}
	if err := k.a.qp.PostSend(SendWR{Op: OpWrite, Flags: Signaled, SGEs: []SGE{k.a.mr.SGE(0, 8)}, RemoteAddr: k.b.mr.Addr(), RKey: k.b.mr.RKey()}); err != nil {
		t.Fatal(err)
	}
	ends(t, a, ErrConnLost)
	if wc := poll(t, 1, k.a.cq); wc[0].Status != RetryExcErr {
		t.Errorf("%v", wc[0].Status)
	}
}

// ctx ends the waiting in every phase, both modes, and what waits leaves nothing behind.
func TestDialCancelled(t *testing.T) {
	bothModes(t, func(t *testing.T, p Progress) {
		for _, lost := range []cm.Attribute{cm.AttrREQ, cm.AttrREP, cm.AttrRTU} {
			k := newTalkers(t, rigConfig{opts: []Option{WithProgress(p)}})
			from := 0
			if lost == cm.AttrREP {
				from = 1
			}
			loseFirst(k, from, 1-from, lost, 1<<30)
			l := k.listen(t)
			ctx, cancel := context.WithCancel(context.Background())
			accepted := make(chan error, 1)
			go func() {
				r, err := l.Accept(ctx)
				if err == nil {
					_, err = r.Accept(ctx, k.b.qp, AcceptOptions{})
				}
				accepted <- err
			}()
			time.AfterFunc(30*time.Millisecond, cancel)
			c, err := k.a.Dial(ctx, k.addr, k.a.qp, DialOptions{})
			if lost == cm.AttrRTU {
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
			} else if !errors.Is(err, context.Canceled) || k.a.qp.State() != StateInit {
				t.Errorf("%v lost: Dial: %v, QP in %v", lost, err, k.a.qp.State())
			}
			// The peer that gave up says so (REJ), which the other end may hear first.
			if err := <-accepted; !errors.Is(err, context.Canceled) && !errors.Is(err, ErrRefused) {
				t.Errorf("%v lost: Accept: %v", lost, err)
			}
			if st := k.b.qp.State(); lost != cm.AttrREQ && st != StateErr {
				t.Errorf("%v lost: the accepted QP is in %v", lost, st)
			}
		}
	})
}

// A path MTU that the listener's interface does not carry is refused with the one that it does, and asked for again.
func TestDialAgainWithSmallerMTU(t *testing.T) {
	k := newTalkers(t, rigConfig{})
	if err := k.link.Port(1).SetMTU(1500); err != nil {
		t.Fatal(err)
	}
	for k.b.Info().ActiveMTU != 1024 {
		time.Sleep(time.Millisecond)
	}
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
			if errors.Is(err, ErrMTU) && !strings.Contains(err.Error(), "asks for path MTU 4096, but this side supports at most 1024") {
				t.Errorf("the refusal reads %q", err)
			}
		}
	}()
	if _, err := k.a.Dial(ctx, k.addr, k.a.qp, DialOptions{}); err != nil {
		t.Fatal(err)
	}
	<-answered
	if at, _ := k.a.qp.Query(); at.PathMTU != 1024 {
		t.Errorf("path MTU %d", at.PathMTU)
	}
}

// A request takes one answer, of the right kind, with private data that fits.
func TestAnswerOnce(t *testing.T) {
	k := newTalkers(t, rigConfig{})
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
		t.Errorf("a refusal too long: %v", err)
	}
	if err := r.AnswerUD(activeUD(t, k.b), nil); !errors.Is(err, ErrInvalid) {
		t.Errorf("a datagram's answer: %v", err)
	}
	if err := r.AnswerUD(k.b.qp, nil); !errors.Is(err, ErrInvalid) {
		t.Errorf("an RC QP for datagrams: %v", err)
	}
	if _, err := r.Accept(ctx, k.b.qp, AcceptOptions{PrivateData: make([]byte, cm.REPPrivateLen+1)}); !errors.Is(err, cm.ErrPrivateData) {
		t.Errorf("an answer too long: %v", err)
	}
	for _, mtu := range []MTU{1500, 9000} {
		if err := (&Request{dev: k.b.Device, req: r.req}).fits(k.b.qp, &AcceptOptions{ConnectOptions: ConnectOptions{MTU: mtu}}); !errors.Is(err, ErrInvalid) {
			t.Errorf("accept with path MTU %d: %v", mtu, err)
		}
		if _, err := k.a.Dial(ctx, k.addr, k.a.qp, DialOptions{ConnectOptions: ConnectOptions{MTU: mtu}}); !errors.Is(err, ErrInvalid) {
			t.Errorf("dial with path MTU %d: %v", mtu, err)
		}
	}
	if err := <-dialed; !errors.Is(err, ErrRefused) || k.b.qp.State() != StateInit {
		t.Errorf("the dialer: %v; b's QP is in %v", err, k.b.qp.State())
	}
	if _, err := r.Accept(ctx, k.b.qp, AcceptOptions{}); !errors.Is(err, ErrAnswered) {
		t.Errorf("a second answer: %v", err)
	}
	if err := r.Reject(nil); !errors.Is(err, ErrAnswered) {
		t.Errorf("a third: %v", err)
	}
}

// Whatever closes while a connection is in the making, in whatever moment: both ends return, with an error or a Conn that ends.
func TestCloseWhileDialing(t *testing.T) {
	closers := map[string]func(k talkers, l *Listener) error{
		"dialer's QP":       func(k talkers, _ *Listener) error { return k.a.qp.Close() },
		"dialer's device":   func(k talkers, _ *Listener) error { return k.a.Close() },
		"acceptor's QP":     func(k talkers, _ *Listener) error { return k.b.qp.Close() },
		"acceptor's device": func(k talkers, _ *Listener) error { return k.b.Close() },
		"listener":          func(_ talkers, l *Listener) error { return l.Close() },
	}
	bothModes(t, func(t *testing.T, p Progress) {
		leakCheck(t)
		for name, closeIt := range closers {
			for _, after := range []time.Duration{0, 100 * time.Microsecond, 400 * time.Microsecond, 2 * time.Millisecond} {
				k := newTalkers(t, rigConfig{opts: []Option{WithProgress(p)}})
				l := k.listen(t)
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
					time.Sleep(after)
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
				if err := errors.Join(l.Close(), k.a.qp.Close(), k.b.qp.Close(), k.a.Close(), k.b.Close()); err != nil && !errors.Is(err, ErrClosed) {
					t.Errorf("%s: %v", name, err)
				}
			}
		}
	})
}

// A request that the peer refuses ends the connection on both sides. The refusal (NAK) and the peer's DREQ may come in one
// batch; what came first is why.
func TestRefusedRequestEndsConn(t *testing.T) {
	k := newTalkers(t, rigConfig{opts: []Option{WithProgress(Manual)}})
	a, b := k.meet(t)
	for range 20 { // nothing is under way
		k.a.Progress()
		k.b.Progress()
	}
	must(t, k.a.qp.PostSend(SendWR{ID: 1, Op: OpWrite, Flags: Signaled, SGEs: []SGE{k.a.mr.SGE(0, 8)}, RemoteAddr: k.b.mr.Addr(), RKey: k.b.mr.RKey() + 1}))
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
