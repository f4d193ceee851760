package messenger_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/roce/messenger"
)

// exchange uses everything once, with x as client and y as server. handle runs in the goroutine of
// the server.
func exchange(ctx context.Context, x, y *messenger.Conn) (client, server func() error) {
	client = func() error {
		m, err := x.Recv(ctx) // the description of the server's memory
		if err != nil {
			return err
		}
		var remote roce.RemoteBuffer
		if err := remote.UnmarshalBinary(m.Bytes()); err != nil {
			return err
		}
		m.Release()
		for i := range 10 {
			m, err := x.Call(ctx, fmt.Append(nil, i))
			if err != nil || string(m.Bytes()) != fmt.Sprint(i) {
				return fmt.Errorf("Call(%d) = %q, %w", i, m.Bytes(), err)
			}
			m.Release()
		}
		p := []byte("one-sided")
		if err := x.WriteAt(ctx, p, remote, 8); err != nil {
			return err
		}
		q := make([]byte, len(p))
		if err := x.ReadAt(ctx, q, remote, 8); err != nil || string(q) != string(p) {
			return fmt.Errorf("ReadAt() = %q, %w", q, err)
		}
		if v, err := x.FetchAdd(ctx, remote, 0, 1); err != nil || v != 0 {
			return fmt.Errorf("FetchAdd() = %d, %w", v, err)
		}
		if err := x.Send(ctx, []byte("bye")); err != nil {
			return err
		}
		return x.Close()
	}
	server = func() error {
		mr, err := y.PD().AllocMR(4096,
			roce.LocalWrite|roce.RemoteWrite|roce.RemoteRead|roce.RemoteAtomic)
		if err != nil {
			return err
		}
		b, _ := mr.Remote().MarshalBinary()
		if err := y.Send(ctx, b); err != nil {
			return err
		}
		if err := y.Handle(ctx, echo); err != nil {
			return err
		}
		m, err := y.Recv(ctx)
		if err != nil || string(m.Bytes()) != "bye" {
			return fmt.Errorf("Recv() = %q, %w", m.Bytes(), err)
		}
		return errors.Join(mr.Close(), y.Close())
	}
	return client, server
}

// With Manual progress, the callers run the protocol.
func TestManual(t *testing.T) {
	b := newBed(t, testbed.Config{Options: []roce.Option{roce.WithProgress(roce.Manual)}})
	ctx := background(t)
	x, y := connectIn(ctx, t, b, messenger.Config{}, messenger.Config{})
	client, server := exchange(ctx, x, y)
	var wg sync.WaitGroup
	for _, f := range []func() error{client, server} {
		wg.Go(func() {
			if err := f(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// In virtual time over a long path. Two runs take the same time to the nanosecond.
func TestVirtual(t *testing.T) {
	var times [2]int64
	for run := range times {
		random := func(n uint64) []roce.Option {
			return []roce.Option{roce.WithExpert(roce.Expert{Rand: rand.New(rand.NewPCG(1,
				n)).Uint64})}
		}
		b := newBed(t, testbed.Config{Virtual: true, Seed: 1,
			Plan:   loopback.Plan{Delay: 50 * time.Millisecond, Loss: 0.02},
			Device: [2][]roce.Option{random(1), random(2)}})
		ctx, stop := context.WithCancel(context.Background())
		defer stop()
		cfg := messenger.Config{Workers: 3, Go: b.Sim.Go}
		l, err := b.Dev[1].Listen(b.Addr(1, port), roce.ListenOptions{})
		if err != nil {
			t.Fatal(err)
		}
		check := func(f func() error) {
			b.Sim.Go(func() {
				if err := f(); err != nil {
					t.Error(err)
				}
			})
		}
		check(func() error {
			c, h, err := messenger.ServeConfig(b.Dev[1], cfg,
				func(ctx context.Context, y *messenger.Conn) error {
					_, server := exchange(ctx, nil, y)
					if err := server(); err != nil {
						t.Error(err)
					}
					stop()
					return nil
				})
			if err != nil {
				return err
			}
			return l.Serve(ctx, c, h)
		})
		check(func() error {
			x, err := messenger.Dial(ctx, b.Dev[0], l.Addr(), cfg)
			if err != nil {
				return err
			}
			client, _ := exchange(context.Background(), x, nil)
			return client()
		})
		if err := b.Sim.Run(time.Hour); err != nil {
			t.Fatal(err)
		}
		times[run] = b.Link.Now()
		l.Close()
	}
	if times[0] < int64(time.Second) || times[0] != times[1] {
		t.Errorf("the runs took %v and %v, want the same and at least 1 s",
			time.Duration(times[0]), time.Duration(times[1]))
	}
}

// TestNoAllocations covers messages, calls and one-sided operations.
func TestNoAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	x, y := pair(t, messenger.Config{})
	ctx, cancel := context.WithCancel(background(t))
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { _ = y.Handle(ctx, echo) })
	got := make(chan struct{})
	wg.Go(func() {
		for {
			m, err := y.Recv(ctx)
			if err != nil {
				return
			}
			m.Release()
			got <- struct{}{}
		}
	})
	remote := memory(t, y).Remote()
	small, large := make([]byte, 64), make([]byte, 20000)
	ops := []messenger.Op{{Op: roce.OpRead, Remote: remote, Local: large},
		{Op: roce.OpFetchAdd, Remote: remote, Value: 1},
		{Op: roce.OpWrite, Remote: remote, Local: small}}
	for name, f := range map[string]func() error{
		"Send": func() error {
			err := x.Send(ctx, small)
			<-got
			return err
		},
		"Call": func() error {
			m, err := x.Call(ctx, small)
			m.Release()
			return err
		},
		"ReadAt":  func() error { return x.ReadAt(ctx, large, remote, 8) },
		"WriteAt": func() error { return x.WriteAt(ctx, large, remote, 8) },
		"FetchAdd": func() error {
			_, err := x.FetchAdd(ctx, remote, 0, 1)
			return err
		},
		"Do": func() error { return x.Do(ctx, ops) },
	} {
		once := func() {
			if err := f(); err != nil {
				t.Fatal(err)
			}
		}
		for range 200 {
			once()
		}
		runtime.GC()
		// Rounded down: the runtime allocates a little of its own.
		if n := testing.AllocsPerRun(200, once); n >= 1 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
}
