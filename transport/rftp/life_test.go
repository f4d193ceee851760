package rftp

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
)

var small = Config{BlockSize: 8192, Pool: 16 * 8192, SourcePool: 8 * 8192, DataQPs: 2}

// TestMismatch checks that both sides report both sides' limits.
func TestMismatch(t *testing.T) {
	for name, c := range map[string]Config{
		"mode":       {Mode: Paper},
		"block size": {BlockSize: 1 << 20, MinBlockSize: 1 << 20},
		"data QPs":   {DataQPs: 9, MinDataQPs: 9},
	} {
		t.Run(name, func(t *testing.T) {
			g := newRig(t, testbed.Config{})
			refusals := make(chan error, 1)
			listener := ListenConfig{Config: small, Refused: func(_ netip.AddrPort, err error) {
				refusals <- err
			}}
			g.listen(listener)
			ctx, cancel := context.WithCancel(g.ctx)
			var wg sync.WaitGroup
			wg.Go(func() { _, _ = g.l.Accept(ctx) })
			_, err := Dial(ctx, g.Dev[0], g.l.Addr(), c)
			cancel()
			wg.Wait()
			for _, e := range []error{err, <-refusals} {
				var m *MismatchError
				if !errors.As(e, &m) || !errors.Is(e, ErrMismatch) {
					t.Errorf("Dial() or Refused: %v, want a *MismatchError", e)
					continue
				}
				for _, l := range []Limits{m.Own, m.Peer} {
					if !strings.Contains(e.Error(), l.String()) {
						t.Errorf("%q does not contain %q", e, l)
					}
				}
				if m.Own == m.Peer {
					t.Errorf("%q has the same limits twice", e)
				}
			}
		})
	}
}

// TestAgree checks that both sides use the smaller values.
func TestAgree(t *testing.T) {
	g := newRig(t, testbed.Config{})
	g.connect(Config{BlockSize: 1 << 16, DataQPs: 3, Pool: 1 << 18, SourcePool: 1 << 18},
		Config{BlockSize: 1 << 14, DataQPs: 64, Pool: 1 << 18, SourcePool: 1 << 18})
	for i, c := range g.conn {
		if c.BlockSize() != 1<<14 || c.DataQPs() != 3 {
			t.Errorf("side %d: blocks of %d bytes, %d data QPs, want %d and 3", i, c.BlockSize(),
				c.DataQPs(), 1<<14)
		}
	}
}

// TestMessages exchanges more messages than the window in both directions, before and after the
// pool is granted.
func TestMessages(t *testing.T) {
	g := newRig(t, testbed.Config{})
	held := small
	held.Hold = true
	g.connect(held, held)
	const n = 500
	var wg sync.WaitGroup
	for i, c := range g.conn {
		wg.Go(func() {
			for k := range n {
				if err := c.SendMessage(g.ctx, fmt.Appendf(nil, "%d %d", i, k)); err != nil {
					t.Errorf("SendMessage() = %v", err)
					return
				}
			}
		})
		wg.Go(func() {
			for k := range n {
				b, err := c.ReceiveMessage(g.ctx)
				if want := fmt.Sprintf("%d %d", 1-i, k); err != nil || string(b) != want {
					t.Errorf("ReceiveMessage() = %q, %v, want %q", b, err, want)
					return
				}
			}
		})
	}
	wg.Wait()
	short, cancel := context.WithTimeout(g.ctx, 20*time.Millisecond)
	defer cancel()
	if err := send(short, g.conn[0], 1, 10); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("send() without a pool = %v, want DeadlineExceeded", err)
	}
	g.must(g.conn[1].Grant())
	g.must(g.conn[1].Grant())
	for range 2 { // the block of the attempt above is sent now
		if _, err := g.conn[1].GetReady(g.ctx); err != nil {
			t.Error(err)
		}
	}
	if err := g.conn[0].SendMessage(g.ctx, make([]byte, MaxMessage+1)); !errors.Is(err, ErrLength) {
		t.Errorf("SendMessage() = %v, want ErrLength", err)
	}
}

// TestManySessions sends more sessions than may be open at a time, from several goroutines, in both
// directions.
func TestManySessions(t *testing.T) {
	g := newRig(t, testbed.Config{})
	c := small
	c.Sessions = 5
	g.connect(c, c)
	const workers, each = 4, 25
	var wg sync.WaitGroup
	for i := range g.conn {
		wg.Go(func() {
			var sources sync.WaitGroup
			for range workers {
				sources.Go(func() {
					for k := range each {
						if err := send(g.ctx, g.conn[i], k%4, 100*k); err != nil {
							t.Errorf("send() = %v", err)
							return
						}
					}
				})
			}
			sources.Wait()
			g.must(g.conn[i].Finish(g.ctx))
		})
		wg.Go(func() {
			got, err := receive(g.ctx, g.conn[i])
			if err != nil || len(got) != workers*each {
				t.Errorf("receive() = %d sessions, %v, want %d", len(got), err, workers*each)
			}
			total := 0
			for _, n := range got {
				total += n
			}
			if want := workers * (each / 4 * 6); total != want {
				t.Errorf("%d blocks arrived, want %d", total, want)
			}
		})
	}
	wg.Wait()
}

// TestAborts checks how the program of the other side learns about each kind of abort.
func TestAborts(t *testing.T) {
	g := newRig(t, testbed.Config{})
	g.connect(small, small)
	sink := func(kind ReadyKind) Ready {
		t.Helper()
		for {
			r, err := g.conn[1].GetReady(g.ctx)
			if err != nil {
				t.Fatal(err)
			}
			if r.Kind == Data && kind != Data {
				g.must(g.conn[1].PutFree(r.Block))
				continue
			}
			if r.Kind == kind {
				return r
			}
		}
	}
	block := func(s *Sender) {
		t.Helper()
		b, err := s.GetFree(g.ctx)
		if err != nil {
			t.Fatal(err)
		}
		g.must(s.Send(b))
	}

	s, err := g.conn[0].Open(g.ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	block(s)
	s.Abort("read error")
	if r := sink(Aborted); r.Session != s.ID() || r.Text != "read error" {
		t.Errorf("GetReady() = %+v, want an abort of session %d", r, s.ID())
	}
	if err := s.Wait(g.ctx); !errors.Is(err, ErrEnded) ||
		!strings.Contains(err.Error(), "read error") {
		t.Errorf("Wait() = %v, want ErrEnded with the reason", err)
	}

	if s, err = g.conn[0].Open(g.ctx, nil); err != nil {
		t.Fatal(err)
	}
	block(s)
	r := sink(Data)
	g.must(g.conn[1].AbortSession(r.Session, "disk full"))
	var abort *AbortError
	if err := s.Wait(g.ctx); !errors.As(err, &abort) || abort.Text != "disk full" ||
		abort.Session != s.ID() {
		t.Errorf("Wait() = %v, want an *AbortError of session %d", err, s.ID())
	}
	if _, err := s.GetFree(g.ctx); !errors.As(err, &abort) {
		t.Errorf("GetFree() = %v, want an *AbortError", err)
	}
	g.must(g.conn[1].PutFree(r.Block))
	if err := g.conn[1].PutFree(r.Block); !errors.Is(err, ErrBlock) {
		t.Errorf("PutFree() again = %v, want ErrBlock", err)
	}
	if err := g.conn[1].AbortSession(r.Session, "again"); !errors.Is(err, ErrEnded) {
		t.Errorf("AbortSession() again = %v, want ErrEnded", err)
	}

	// The connection still works.
	done := make(chan error, 1)
	go func() { done <- send(g.ctx, g.conn[0], 3, 100) }()
	sink(Ended)
	g.must(<-done)

	g.conn[0].Abort("interrupted")
	_, err = g.conn[1].GetReady(g.ctx)
	if !errors.As(err, &abort) || abort.Session != 0 || abort.Text != "interrupted" {
		t.Errorf("GetReady() = %v, want an *AbortError of the connection", err)
	}
	if _, err := g.conn[0].Open(g.ctx, nil); !errors.Is(err, ErrClosed) {
		t.Errorf("Open() after Abort = %v, want ErrClosed", err)
	}
}

// TestClose checks that every call that waits returns when either side closes the connection.
func TestClose(t *testing.T) {
	g := newRig(t, testbed.Config{})
	g.connect(small, small)
	s, err := g.conn[0].Open(g.ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	errs := make(chan error, 10)
	calls := 0
	for i, c := range g.conn {
		for _, f := range []func() error{
			func() error { _, err := c.GetReady(g.ctx); return err },
			func() error { _, err := c.GetReady(g.ctx); return err },
			func() error { _, err := c.ReceiveMessage(g.ctx); return err },
			func() error { <-c.Done(); return c.Err() },
		} {
			calls++
			go func() {
				err := f()
				if i == 1 && errors.Is(err, ErrPeerClosed) {
					err = ErrClosed // as on the other side
				}
				errs <- err
			}()
		}
	}
	go func() { errs <- s.Wait(g.ctx) }()
	calls++
	g.must(g.conn[0].Close())
	opened := 0
	for range calls {
		switch err := <-errs; {
		case err == nil:
			opened++
		case !errors.Is(err, ErrClosed):
			t.Errorf("a call returned %v, want ErrClosed", err)
		}
	}
	if opened > 1 {
		t.Errorf("%d calls returned no error, want at most 1", opened)
	}
	g.must(g.conn[0].Close())
}

// TestSmallerMTU connects to a listener whose interface supports only a smaller path MTU.
func TestSmallerMTU(t *testing.T) {
	g := newRig(t, testbed.Config{Wrap: func(side int, p driver.Port) driver.Port {
		if side == 1 {
			if err := p.(*loopback.Port).SetMTU(1500); err != nil {
				t.Fatal(err)
			}
		}
		return p
	}})
	refused := make(chan error, 16)
	g.listen(ListenConfig{Config: small, Refused: func(_ netip.AddrPort, err error) {
		refused <- err
	}})
	accepted := make(chan error, 1)
	go func() {
		var err error
		g.conn[1], err = g.l.Accept(g.ctx)
		accepted <- err
	}()
	var err error
	if g.conn[0], err = Dial(g.ctx, g.Dev[0], g.Addr(1, testPort), small); err != nil {
		t.Fatal(err)
	}
	g.must(<-accepted)
	if len(refused) > 0 {
		t.Errorf("the listener reports %v", <-refused)
	}
	for _, q := range append(g.conn[0].data, g.conn[0].ctl) {
		if a, err := q.Query(); err != nil || a.PathMTU != 1024 {
			t.Errorf("path MTU %d, %v, want 1024", a.PathMTU, err)
		}
	}
}

// TestClasses checks the marks in the packets of both sides, and the class of their QPs.
func TestClasses(t *testing.T) {
	for _, c := range []struct {
		cfg           Config
		data, control int // class of the QP
		dscp          [2]byte
	}{
		{Config{}, 0, 0, [2]byte{0, 8}},
		{Config{Class: 2}, 2, 2, [2]byte{16, 24}},
		{Config{Class: 2, Prioritize: true}, 2, 3, [2]byte{16, 24}},
	} {
		g := newRig(t, testbed.Config{})
		listener := small
		listener.Prioritize = c.cfg.Prioritize
		c.cfg.BlockSize, c.cfg.Pool, c.cfg.SourcePool = 8192, 8*8192, 8*8192
		var mu sync.Mutex
		marks := map[roce.QPN]byte{}
		for _, d := range [][2]int{{0, 1}, {1, 0}} {
			g.Link.SetFilter(d[0], d[1], func(f []byte) loopback.Action {
				mu.Lock()
				marks[destQP(f)] = f[15] >> 2
				mu.Unlock()
				return loopback.Pass
			})
		}
		g.connect(c.cfg, listener)
		done := make(chan error, 1)
		go func() {
			err := send(g.ctx, g.conn[0], 5, 8000)
			if err == nil {
				err = g.conn[0].Finish(g.ctx)
			}
			done <- err
		}()
		if _, err := receive(g.ctx, g.conn[1]); err != nil {
			t.Error(err)
		}
		g.must(<-done)
		mu.Lock()
		seen := maps.Clone(marks) // Query waits for the owner, which may wait for mu
		mu.Unlock()
		for i, conn := range g.conn {
			for k, q := range []*roce.QP{conn.data[0], conn.ctl} {
				a, err := q.Query()
				want := []int{c.data, c.control}[k]
				if err != nil || int(a.Class) != want {
					t.Errorf("%+v: side %d: class %d, %v, want %d", c, i, a.Class, err, want)
				}
				if m, ok := seen[q.QPN()]; !ok || m != c.dscp[k] {
					t.Errorf("%+v: packets to side %d have DSCP %d, want %d", c, i, m, c.dscp[k])
				}
			}
		}
	}
}
