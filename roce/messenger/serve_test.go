package messenger_test

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/roce/messenger"
)

// The client and the server of the example are short.
func TestExampleLines(t *testing.T) {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, "example_test.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	limits := map[string]int{"echoClient": 15, "echoServer": 25}
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || limits[fn.Name.Name] == 0 {
			continue
		}
		n := fset.Position(fn.End()).Line - fset.Position(fn.Pos()).Line + 1
		if limit := limits[fn.Name.Name]; n > limit {
			t.Errorf("%s has %d lines, want at most %d", fn.Name.Name, n, limit)
		}
		delete(limits, fn.Name.Name)
	}
	if len(limits) > 0 {
		t.Errorf("functions without a definition: %v", limits)
	}
}

// A server serves many clients at the same time, receives the last messages of clients that close
// their connections, and leaves nothing when it ends, also with clients that are connected.
func TestServe(t *testing.T) {
	for _, shared := range []bool{false, true} {
		b := newBed(t, testbed.Config{})
		goroutines := runtime.NumGoroutine()
		ctx, stop := context.WithCancel(background(t))
		cfg := messenger.Config{Depth: 8}
		var pd *roce.PD
		if shared {
			var err error
			if pd, err = b.Dev[1].AllocPD(); err != nil {
				t.Fatal(err)
			}
			cfg.PD = pd
		}
		l, err := b.Dev[1].Listen(b.Addr(1, port), roce.ListenOptions{})
		if err != nil {
			t.Fatal(err)
		}
		const clients, messages = 20, 7
		got := make(chan int, clients)
		sc, h, err := messenger.ServeConfig(b.Dev[1], cfg,
			func(ctx context.Context, c *messenger.Conn) error {
				n := 0
				for _, err := range c.Messages(ctx) {
					if err != nil {
						return err
					}
					n++
				}
				got <- n
				return nil
			})
		if err != nil {
			t.Fatal(err)
		}
		sc.MaxPending = 8 * clients // a fourth is for one peer
		var server, wg sync.WaitGroup
		server.Go(func() {
			if err := l.Serve(ctx, sc, h); err != nil {
				t.Error(err)
			}
		})
		for range clients {
			wg.Go(func() {
				x, err := messenger.Dial(ctx, b.Dev[0], l.Addr(), messenger.Config{})
				if err != nil {
					t.Error(err)
					return
				}
				for i := range messages {
					if err := x.Send(ctx, fmt.Append(nil, i)); err != nil {
						t.Error(err)
					}
				}
				if err := x.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		for range clients {
			if n := <-got; n != messages {
				t.Errorf("the server received %d messages of a client, want %d", n, messages)
			}
		}
		x, err := messenger.Dial(ctx, b.Dev[0], l.Addr(), messenger.Config{})
		if err != nil {
			t.Fatal(err)
		}
		stop()
		server.Wait()
		if _, err := x.Recv(background(t)); !errors.Is(err, roce.ErrDisconnected) {
			t.Errorf("Recv() = %v, want %v", err, roce.ErrDisconnected)
		}
		if err := x.Close(); err != nil {
			t.Error(err)
		}
		if pd != nil { // fails while anything is left in it
			if err := pd.Close(); err != nil {
				t.Error(err)
			}
		}
		if n := len(b.Dev[1].QPStats()); n != 0 {
			t.Errorf("%d QPs are left, want 0", n)
		}
		awaitGoroutines(t, goroutines)
	}
}

// A peer of another version is refused, and leaves nothing.
func TestServeRefuses(t *testing.T) {
	b := newBed(t, testbed.Config{})
	ctx, stop := context.WithCancel(background(t))
	pd, err := b.Dev[1].AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	l, err := b.Dev[1].Listen(b.Addr(1, port), roce.ListenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	sc, h, err := messenger.ServeConfig(b.Dev[1], messenger.Config{PD: pd}, messenger.Calls(echo))
	if err != nil {
		t.Fatal(err)
	}
	var server sync.WaitGroup
	server.Go(func() {
		if err := l.Serve(ctx, sc, h); err != nil {
			t.Error(err)
		}
	})
	clientPD, err := b.Dev[0].AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	q, err := b.Dev[0].CreateQP(clientPD, roce.QPConfig{})
	if err != nil {
		t.Fatal(err)
	}
	private := helloBytes(1, 1)
	private[4] = 9
	_, err = b.Dev[0].Dial(ctx, l.Addr(), q, roce.DialOptions{PrivateData: private})
	var refused *roce.RejectError
	if !errors.As(err, &refused) || refused.Reason != roce.RejectUnsupported {
		t.Errorf("Dial() = %v, want RejectUnsupported", err)
	}
	stop()
	server.Wait()
	if err := errors.Join(pd.Close(), q.Close(), clientPD.Close()); err != nil {
		t.Error(err)
	}
}

// awaitGoroutines waits until at most n goroutines run.
func awaitGoroutines(t *testing.T, n int) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); runtime.NumGoroutine() > n; {
		if time.Now().After(end) {
			t.Fatalf("%d goroutines, want at most %d", runtime.NumGoroutine(), n)
		}
		time.Sleep(time.Millisecond)
	}
}

// Functions that are missing are errors at once, not a panic when a peer connects or calls.
func TestNilFunctions(t *testing.T) {
	b := newBed(t, testbed.Config{})
	short, cancel := context.WithTimeout(background(t), time.Second)
	defer cancel()
	err := messenger.Serve(short, b.Dev[1], netip.AddrPort{}, messenger.Config{}, nil)
	if !errors.Is(err, roce.ErrInvalid) {
		t.Errorf("Serve() = %v, want %v", err, roce.ErrInvalid)
	}
	err = messenger.Serve(short, b.Dev[1], netip.AddrPort{}, messenger.Config{}, messenger.Calls(nil))
	if !errors.Is(err, roce.ErrInvalid) {
		t.Errorf("Serve() = %v, want %v", err, roce.ErrInvalid)
	}
	x, _ := connect(t, b, messenger.Config{}, messenger.Config{})
	if err := x.Handle(short, nil); !errors.Is(err, roce.ErrInvalid) {
		t.Errorf("Handle() = %v, want %v", err, roce.ErrInvalid)
	}
	nobody := netip.MustParseAddrPort("10.77.0.9:1")
	if _, err := messenger.Dial(short, nil, nobody, messenger.Config{}); !errors.Is(err,
		roce.ErrInvalid) {
		t.Errorf("Dial() of a nil Device = %v, want %v", err, roce.ErrInvalid)
	}
	if err := messenger.Serve(short, nil, nobody, messenger.Config{},
		messenger.Calls(echo)); !errors.Is(err, roce.ErrInvalid) {
		t.Errorf("Serve() of a nil Device = %v, want %v", err, roce.ErrInvalid)
	}
	defer func() {
		if got := recover(); got != "messenger: nil Context" {
			t.Errorf("Dial() with a nil Context: %v", got)
		}
	}()
	var none context.Context
	_, _ = messenger.Dial(none, b.Dev[0], nobody, messenger.Config{}) // panics
}

// A call whose context has ended before sends nothing.
func TestCanceledBefore(t *testing.T) {
	b := newBed(t, testbed.Config{})
	x, y := connect(t, b, messenger.Config{}, messenger.Config{})
	canceled, cancel := context.WithCancel(background(t))
	cancel()
	if err := x.Send(canceled, []byte("a")); !errors.Is(err, context.Canceled) {
		t.Errorf("Send() = %v, want %v", err, context.Canceled)
	}
	if _, err := x.Call(canceled, []byte("b")); !errors.Is(err, context.Canceled) {
		t.Errorf("Call() = %v, want %v", err, context.Canceled)
	}
	if err := x.Send(background(t), []byte("c")); err != nil {
		t.Fatal(err)
	}
	m, err := y.Recv(background(t))
	if err != nil || string(m.Bytes()) != "c" {
		t.Fatalf("Recv() = %q, %v; want c", m.Bytes(), err)
	}
	m.Release()
}

// In virtual time, what starts goroutines needs Config.Go.
func TestVirtualNeedsGo(t *testing.T) {
	b := newBed(t, testbed.Config{Virtual: true})
	err := messenger.Serve(background(t), b.Dev[1], b.Addr(1, port), messenger.Config{},
		messenger.Calls(echo))
	if !errors.Is(err, roce.ErrInvalid) || !strings.Contains(err.Error(), "Config.Go") {
		t.Errorf("Serve() = %v, want %v for Config.Go", err, roce.ErrInvalid)
	}
	var handled error
	b.Sim.Go(func() {
		l, err := b.Dev[1].Listen(b.Addr(1, port), roce.ListenOptions{})
		if err != nil {
			t.Error(err)
			return
		}
		r, err := l.Accept(background(t))
		if err != nil {
			t.Error(err)
			return
		}
		y, err := messenger.Accept(background(t), b.Dev[1], r, messenger.Config{Workers: 2})
		if err != nil {
			t.Error(err)
			return
		}
		handled = y.Handle(background(t), echo)
		_ = y.Close() // the client may have closed first
		_ = l.Close() // ends with the device
	})
	b.Sim.Go(func() {
		x, err := messenger.Dial(background(t), b.Dev[0], b.Addr(1, port), messenger.Config{})
		if err != nil {
			t.Error(err)
			return
		}
		_ = x.Close() // the server may have closed first
	})
	if err := b.Sim.Run(time.Minute); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(handled, roce.ErrInvalid) {
		t.Errorf("Handle() with 2 Workers = %v, want %v", handled, roce.ErrInvalid)
	}
}
