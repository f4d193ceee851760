package messenger_test

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/roce/messenger"
)

// Send waits while the peer's program does not take messages, until its context ends, and goes on
// when the program does.
func TestBackpressure(t *testing.T) {
	for _, depth := range []int{1, 2, 5, 100} {
		x, y := pair(t, messenger.Config{Depth: depth})
		ctx := background(t)
		sent := 0
		fill := func() {
			for {
				short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
				err := x.Send(short, []byte{byte(sent)})
				cancel()
				if errors.Is(err, context.DeadlineExceeded) {
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				sent++
			}
		}
		fill()
		if sent != depth {
			t.Errorf("depth %d: sent %d messages", depth, sent)
		}
		// The peer holds half of the messages and releases the others, which must be enough.
		var held []messenger.Message
		got := 0
		for got < 3*depth {
			m, err := y.Recv(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if m.Bytes()[0] != byte(got) {
				t.Errorf("depth %d: message %d is number %d", depth, got, m.Bytes()[0])
			}
			got++
			if len(held) < depth/2 {
				held = append(held, m)
			} else {
				m.Release()
			}
			for sent < got+1 {
				if err := x.Send(ctx, []byte{byte(sent)}); err != nil {
					t.Fatal(err)
				}
				sent++
			}
		}
		for _, m := range held {
			m.Release()
		}
		if c := x.QP(); c.State() != roce.StateRTS {
			t.Errorf("depth %d: the QP is in state %v", depth, c.State())
		}
	}
}

// No RNR NAK occurs, whatever the program does with its messages.
func TestNoRNR(t *testing.T) {
	b := newBed(t, testbed.Config{})
	c := messenger.Config{Depth: 10, Calls: 3}
	x, y := connect(t, b, c, c)
	ctx := background(t)
	var wg sync.WaitGroup
	const count = 2000
	wg.Go(func() {
		for i := range count {
			if err := x.Send(ctx, []byte{byte(i)}); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for i, held := 0, []messenger.Message(nil); i < count; i++ {
		m, err := y.Recv(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if held = append(held, m); len(held) > i%10 {
			for len(held) > 0 {
				j := (i * 7) % len(held)
				held[j].Release()
				held = append(held[:j], held[j+1:]...)
			}
		}
	}
	wg.Wait()
	if n := b.Dev[0].Counters().RcvdRNR; n != 0 {
		t.Errorf("%d RNR NAKs, want 0", n)
	}
}

func TestTooLarge(t *testing.T) {
	x, y := pair(t, messenger.Config{MaxMessage: 100})
	ctx := background(t)
	if x.MaxMessage() != 100 {
		t.Errorf("MaxMessage() = %d, want 100", x.MaxMessage())
	}
	if err := x.Send(ctx, make([]byte, 101)); !errors.Is(err, messenger.ErrTooLarge) {
		t.Errorf("Send() = %v, want %v", err, messenger.ErrTooLarge)
	}
	if _, err := x.Call(ctx, make([]byte, 101)); !errors.Is(err, messenger.ErrTooLarge) {
		t.Errorf("Call() = %v, want %v", err, messenger.ErrTooLarge)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := y.Handle(ctx, func(context.Context, []byte) ([]byte, error) {
			return make([]byte, 101), nil
		}); err != nil {
			t.Error(err)
		}
	})
	var remote *messenger.CallError
	if _, err := x.Call(ctx, nil); !errors.As(err, &remote) ||
		!strings.Contains(remote.Text, "too large") {
		t.Errorf("Call() = %v, want a CallError: too large", err)
	}
	_ = x.Close()
	wg.Wait()
	for _, c := range []messenger.Config{{Depth: -1}, {MaxMessage: 1 << 30}, {Calls: 1 << 20},
		{Workers: -1}} {
		_, err := messenger.Dial(ctx, nil, netip.AddrPort{}, c)
		if !errors.Is(err, roce.ErrInvalid) {
			t.Errorf("Dial(%+v) = %v, want %v", c, err, roce.ErrInvalid)
		}
	}
}

// A call that is canceled cancels the context of the Handler, and its answer is discarded. Many
// more calls can be canceled than may be outstanding.
func TestCancelCall(t *testing.T) {
	x, y := pair(t, messenger.Config{Depth: 4, Calls: 2, Workers: 2})
	ctx := background(t)
	var wg sync.WaitGroup
	started := make(chan bool, 1)
	wg.Go(func() {
		_ = y.Handle(ctx, func(ctx context.Context, req []byte) ([]byte, error) {
			if string(req) == "wait" {
				started <- true
				<-ctx.Done()
			}
			return req, nil
		})
	})
	for range 20 {
		short, cancel := context.WithCancel(ctx)
		wg.Go(func() {
			<-started
			cancel()
		})
		if _, err := x.Call(short, []byte("wait")); !errors.Is(err, context.Canceled) {
			t.Fatalf("Call() = %v, want %v", err, context.Canceled)
		}
		m, err := x.Call(ctx, []byte("echo"))
		if err != nil || string(m.Bytes()) != "echo" {
			t.Fatalf("Call() = %q, %v", m.Bytes(), err)
		}
		m.Release()
	}
	_ = x.Close()
	wg.Wait()
}

// Answers that the program holds count as outstanding calls. Their release lets others go on.
func TestHeldAnswers(t *testing.T) {
	x, y := pair(t, messenger.Config{Depth: 4, Calls: 2})
	ctx := background(t)
	var wg sync.WaitGroup
	wg.Go(func() { _ = y.Handle(ctx, echo) })
	for range 50 {
		a, err := x.Call(ctx, []byte("a"))
		if err != nil {
			t.Fatal(err)
		}
		b, err := x.Call(ctx, []byte("b"))
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan messenger.Message)
		go func() {
			m, err := x.Call(ctx, []byte("c"))
			if err != nil {
				t.Error(err)
			}
			done <- m
		}()
		runtime.Gosched()
		b.Release()
		m := <-done
		if string(m.Bytes()) != "c" || string(a.Bytes()) != "a" {
			t.Errorf("answers %q and %q, want c and a", m.Bytes(), a.Bytes())
		}
		a.Release()
		m.Release()
	}
	_ = x.Close()
	wg.Wait()
}

// After the end of a context the memory belongs to the caller, and the connection goes on.
func TestCancelReadAt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const delay = 10 * time.Millisecond
		b, err := testbed.New(testbed.Config{Plan: loopback.Plan{Delay: delay}})
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		x, y := connectIn(context.Background(), t, b, messenger.Config{},
			messenger.Config{})
		defer y.Close()
		defer x.Close()
		mr, err := y.PD().AllocMR(1<<16,
			roce.LocalWrite|roce.RemoteWrite|roce.RemoteRead|roce.RemoteAtomic)
		if err != nil {
			t.Fatal(err)
		}
		defer mr.Close()
		for i := range mr.Bytes() {
			mr.Bytes()[i] = 1
		}
		ctx := context.Background()
		p := make([]byte, 1<<16)
		short, cancel := context.WithTimeout(ctx, delay)
		defer cancel()
		start := time.Now()
		if err := x.ReadAt(short, p, mr.Remote(), 0); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("ReadAt() = %v, want %v", err, context.DeadlineExceeded)
		}
		if took := time.Since(start); took != delay {
			t.Errorf("ReadAt() returned after %v, want %v", took, delay)
		}
		for i := range p {
			p[i] = 2
		}
		time.Sleep(10 * delay)
		if v, err := x.FetchAdd(ctx, mr.Remote(), 0, 1); v != 0x0101010101010101 || err != nil {
			t.Errorf("FetchAdd() = %#x, %v", v, err)
		}
		if !bytes.Equal(p, bytes.Repeat([]byte{2}, len(p))) {
			t.Error("the READ changed memory of the caller after its context had ended")
		}
		// With memory of the caller, the connection ends.
		local, err := x.PD().AllocMR(1<<16, roce.LocalWrite)
		if err != nil {
			t.Fatal(err)
		}
		defer local.Close()
		short, cancel = context.WithTimeout(ctx, delay)
		defer cancel()
		err = x.Do(short, []messenger.Op{{Op: roce.OpRead, Remote: mr.Remote(),
			SGE: local.SGE(0, 1<<16)}})
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Do() = %v, want %v", err, context.DeadlineExceeded)
		}
		for i := range local.Bytes() {
			local.Bytes()[i] = 3
		}
		time.Sleep(10 * delay)
		if !bytes.Equal(local.Bytes(), bytes.Repeat([]byte{3}, local.Len())) {
			t.Error("the READ changed memory of the caller after Do had returned")
		}
		if err := x.ReadAt(ctx, p, mr.Remote(), 0); !errors.Is(err, roce.ErrConnLost) {
			t.Errorf("ReadAt() = %v, want %v", err, roce.ErrConnLost)
		}
	})
}

// A list may be longer than the send queue, and its context may end while it waits for slots.
func TestLongList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const delay = 10 * time.Millisecond
		b, err := testbed.New(testbed.Config{Plan: loopback.Plan{Delay: delay}})
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		ctx := context.Background()
		c := messenger.Config{Depth: 4}
		x, y := connectIn(ctx, t, b, c, c)
		defer y.Close()
		defer x.Close()
		mr := memory(t, y)
		ops := make([]messenger.Op, 50)
		for i := range ops {
			ops[i] = messenger.Op{Op: roce.OpFetchAdd, Remote: mr.Remote(), Value: 1}
		}
		for done := range uint64(3) {
			if err := x.Do(ctx, ops); err != nil || mr.Load64(0) < 50*(done+1) {
				t.Fatalf("Do() = %v, the sum is %d, want at least %d", err, mr.Load64(0), 50*(done+1))
			}
			short, cancel := context.WithTimeout(ctx, 3*delay)
			if err := x.Do(short, ops); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Do() = %v, want %v", err, context.DeadlineExceeded)
			}
			cancel()
		}
	})
}

// A peer that dies is noticed, also without traffic, and the error names it and the status.
func TestDeadPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, err := testbed.New(testbed.Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		ctx := context.Background()
		for _, busy := range []bool{false, true} {
			c := messenger.Config{Linger: -1}
			x, y := connectIn(ctx, t, b, c, c)
			if err := errors.Join(b.Link.SetPlan(0, 1, loopback.Plan{Loss: 1}),
				b.Link.SetPlan(1, 0, loopback.Plan{Loss: 1})); err != nil {
				t.Fatal(err)
			}
			limit := 10 * time.Second
			if busy {
				limit = 5 * time.Second
				if err := x.Send(ctx, nil); err != nil {
					t.Fatal(err)
				}
			}
			start := time.Now()
			_, err = x.Recv(ctx)
			var status *roce.StatusError
			if !errors.Is(err, roce.ErrConnLost) || !errors.As(err, &status) ||
				status.Status != roce.RetryExcErr ||
				!strings.Contains(err.Error(), x.RemoteAddr().String()) {
				t.Errorf("Recv() = %v, want ErrConnLost, the status and the peer", err)
			}
			if took := time.Since(start); took > limit {
				t.Errorf("busy %v: Recv() returned after %v, want at most %v", busy, took, limit)
			}
			_, _ = x.Close(), y.Close()
			if err := errors.Join(b.Link.SetPlan(0, 1, loopback.Plan{}),
				b.Link.SetPlan(1, 0, loopback.Plan{})); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// If the peer dies before it has a message, Flush and Close return an error.
func TestLostMessage(t *testing.T) {
	b := newBed(t, testbed.Config{})
	c := messenger.Config{Depth: 4, Linger: time.Minute,
		Connect: roce.ConnectOptions{Timeout: 6, Retries: 1}} // found dead after 0.3 s
	conns := make([]*messenger.Conn, 100)
	for i := range conns {
		var peer *messenger.Conn
		conns[i], peer = connectIn(background(t), t, b, c, c)
		defer peer.Close()
	}
	if err := b.Link.SetPlan(0, 1, loopback.Plan{Loss: 1}); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i, x := range conns {
		if err := x.Send(background(t), nil); err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			defer x.Close()
			end := x.Close
			if i%2 == 0 {
				end = func() error { return x.Flush(background(t)) }
			}
			if err := end(); !errors.Is(err, roce.RetryExcErr) {
				t.Errorf("connection %d: %v, want %v", i, err, roce.RetryExcErr)
			}
		})
	}
	wg.Wait()
}

// After Close nothing is left: no goroutine, no QP, MR, CQ or PD, and waiting calls have returned.
func TestClose(t *testing.T) {
	limits := roce.WithExpert(roce.Expert{MaxQP: 1, MaxPD: 1, MaxMR: 1})
	b := newBed(t, testbed.Config{Options: []roce.Option{limits}})
	before := runtime.NumGoroutine()
	ctx := background(t)
	for range 5 { // leaks would exceed the limits
		x, y := connectIn(context.Background(), t, b, messenger.Config{},
			messenger.Config{})
		var wg sync.WaitGroup
		for _, f := range []func() error{
			func() error { _, err := x.Recv(ctx); return err },
			func() error { _, err := x.Recv(ctx); return err },
			func() error { _, err := x.Call(ctx, nil); return err },
			func() error { return x.Handle(ctx, echo) },
			func() error { return y.ReadAt(ctx, make([]byte, 1), roce.RemoteBuffer{Len: 1}, 0) },
		} {
			wg.Go(func() {
				if err := f(); err == nil {
					t.Error("a call returned nil after Close")
				}
			})
		}
		time.Sleep(5 * time.Millisecond) // most calls wait by now; the others must not hang either
		if err := errors.Join(x.Close(), x.Close()); err != nil {
			t.Error(err)
		}
		// The READ of y has a wrong key. On a busy machine it may not fail before y closes.
		if err := y.Close(); err != nil && !errors.Is(err, roce.RemAccessErr) {
			t.Error(err)
		}
		wg.Wait()
	}
	awaitGoroutines(t, before)
}

// If a program has closed a connection before its memory, a further Close releases the rest.
func TestCloseBeforeMemory(t *testing.T) {
	b := newBed(t, testbed.Config{Options: []roce.Option{roce.WithExpert(roce.Expert{MaxPD: 1})}})
	for range 2 {
		x, y := connectIn(background(t), t, b, messenger.Config{}, messenger.Config{})
		mr, err := x.PD().AllocMR(8, roce.LocalWrite)
		if err != nil {
			t.Fatal(err)
		}
		if err := x.Close(); !errors.Is(err, roce.ErrInUse) {
			t.Errorf("Close() = %v, want %v", err, roce.ErrInUse)
		}
		if err := errors.Join(mr.Close(), x.Close(), y.Close()); err != nil {
			t.Error(err)
		}
	}
}

// The end of the device ends its connections. They can still be closed.
func TestDeviceClosed(t *testing.T) {
	b := newBed(t, testbed.Config{})
	x, y := connectIn(context.Background(), t, b, messenger.Config{},
		messenger.Config{})
	ctx := background(t)
	var wg sync.WaitGroup
	for _, f := range []func() error{
		func() error { _, err := x.Recv(ctx); return err },
		func() error { _, err := x.Call(ctx, nil); return err },
		func() error { return x.Handle(ctx, echo) },
	} {
		wg.Go(func() {
			if err := f(); !errors.Is(err, roce.ErrClosed) {
				t.Errorf("got %v, want %v", err, roce.ErrClosed)
			}
		})
	}
	if err := b.Dev[0].Close(); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if err := x.Send(ctx, nil); !errors.Is(err, roce.ErrClosed) {
		t.Errorf("Send() = %v, want %v", err, roce.ErrClosed)
	}
	if _, err := y.Recv(ctx); !errors.Is(err, roce.ErrDisconnected) {
		t.Errorf("the peer's Recv() = %v, want %v", err, roce.ErrDisconnected)
	}
	if err := errors.Join(x.Close(), y.Close()); err != nil {
		t.Error(err)
	}
}

// An access that the peer refuses ends the connection, and the error says why.
func TestRefusedAccess(t *testing.T) {
	x, y := pair(t, messenger.Config{})
	ctx := background(t)
	remote := memory(t, y).Remote()
	remote.RKey++
	err := x.WriteAt(ctx, []byte("x"), remote, 0)
	var status *roce.StatusError
	if !errors.As(err, &status) || status.Status != roce.RemAccessErr ||
		!errors.Is(err, roce.ErrConnLost) {
		t.Errorf("WriteAt() = %v, want ErrConnLost with the status %v", err, roce.RemAccessErr)
	}
	if err := x.Send(ctx, nil); !errors.Is(err, roce.ErrConnLost) {
		t.Errorf("Send() = %v, want %v", err, roce.ErrConnLost)
	}
}

// A Handler that waits ends with the connection, also if nothing else polls.
func TestHandlerEnds(t *testing.T) {
	x, y := pair(t, messenger.Config{})
	ctx := background(t)
	started := make(chan bool)
	go func() {
		<-started
		_ = x.Close()
	}()
	go func() { _, _ = x.Call(ctx, nil) }()
	err := y.Handle(ctx, func(ctx context.Context, _ []byte) ([]byte, error) {
		close(started)
		<-ctx.Done()
		return nil, context.Cause(ctx)
	})
	if err != nil {
		t.Errorf("Handle() = %v, want nil", err)
	}
}

// A cancellation that finds no credit is sent when the peer grants some.
func TestCancelWithoutCredits(t *testing.T) {
	x, y := pair(t, messenger.Config{Depth: 4, Workers: 2})
	ctx := background(t)
	var wg sync.WaitGroup
	started, ended := make(chan bool), make(chan bool)
	wg.Go(func() {
		_ = y.Handle(ctx, func(ctx context.Context, req []byte) ([]byte, error) {
			started <- true
			<-ctx.Done()
			close(ended)
			return req, nil
		})
	})
	short, cancel := context.WithCancel(ctx)
	called := make(chan error)
	go func() {
		_, err := x.Call(short, []byte("wait"))
		called <- err
	}()
	<-started
	sent := 0
	for ; ; sent++ { // until there is no credit
		limit, stop := context.WithTimeout(ctx, 100*time.Millisecond)
		err := x.Send(limit, []byte("message"))
		stop()
		if errors.Is(err, context.DeadlineExceeded) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	if err := <-called; !errors.Is(err, context.Canceled) {
		t.Fatalf("Call() = %v, want %v", err, context.Canceled)
	}
	wg.Go(func() { _, _ = x.Recv(ctx) }) // somebody must take in the credits
	for range sent {
		m, err := y.Recv(ctx)
		if err != nil {
			t.Fatal(err)
		}
		m.Release()
	}
	select {
	case <-ended:
	case <-ctx.Done():
		t.Error("the Handler's context was not canceled")
	}
	_, _ = x.Close(), y.Close()
	wg.Wait()
}

// When the network interface disappears, calls that wait return roce.ErrGone, and not the status of
// the receives, thousands of which complete before the connection ends.
func TestInterfaceGone(t *testing.T) {
	b := newBed(t, testbed.Config{})
	c := messenger.Config{Depth: messenger.MaxDepth, MaxMessage: 64}
	x, _ := connect(t, b, c, c)
	got := make(chan error, 1)
	go func() {
		_, err := x.Recv(background(t))
		got <- err
	}()
	time.Sleep(10 * time.Millisecond)
	if err := b.Link.Port(0).Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-got; !errors.Is(err, roce.ErrGone) {
		t.Errorf("Recv() = %v, want %v", err, roce.ErrGone)
	}
}
