package roce

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/xdp/veth"
)

// stress is how long each stress test runs. Lost wake-ups that happen once in a million times need
// 10 s and more, on a machine whose CPUs are busy.
var stress = flag.Duration("stress", 60*time.Millisecond,
	"how long each test of lost wake-ups runs")

// stuck is how long a stress test may make no progress.
const stuck = 10 * time.Second

// storm is a set of goroutines that repeat something, and a watchdog over them.
type storm struct {
	t     *testing.T
	ctx   context.Context
	over  atomic.Bool
	moved atomic.Uint64
	all   sync.WaitGroup
}

func newStorm(t *testing.T) *storm { return &storm{t: t, ctx: t.Context()} }

// run repeats f until the storm is over or f returns false.
func (s *storm) run(f func() bool) {
	s.all.Go(func() {
		for !s.over.Load() && f() {
			s.moved.Add(1)
		}
	})
}

// end lets the storm run for a while, ends it with f, and panics if it gets stuck.
func (s *storm) end(f func()) {
	s.t.Helper()
	done := make(chan struct{})
	last, since, begin := s.moved.Load(), time.Now(), time.Now()
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for ended := false; ; {
		select {
		case <-done:
			if n := s.moved.Load(); n > 0 {
				s.t.Logf("%d rounds", n)
			}
			return
		case <-look.C:
		}
		if now := s.moved.Load(); now != last {
			last, since = now, time.Now()
		} else if time.Since(since) > stuck {
			buf := make([]byte, 1<<20)
			panic(fmt.Sprintf("%s is stuck after %d rounds (it was to end: %v)\n%s", s.t.Name(),
				last, ended, buf[:runtime.Stack(buf, true)]))
		}
		if !ended && time.Since(begin) > *stress {
			ended, since = true, time.Now()
			go func() {
				s.over.Store(true)
				f()
				s.all.Wait()
				close(done)
			}()
		}
	}
}

// pairOf creates another pair of connected QPs with separate CQs.
func pairOf(t *testing.T, a, b *end) (x, y *end) {
	t.Helper()
	var ends [2]*end
	for i, e := range []*end{a, b} {
		n := *e
		var err error
		n.cq, err = e.CreateCQ(64)
		must(t, err)
		n.qp, err = e.CreateQP(e.pd, QPConfig{SendCQ: n.cq})
		must(t, err)
		ends[i] = &n
	}
	connect(t, ends[0].qp, ends[1].qp)
	return ends[0], ends[1]
}

// pingPong starts two goroutines that send to each other in turn, one SEND at a time, and wait for
// each completion.
func (s *storm) pingPong(a, b *end) {
	recv := RecvWR{}
	must(s.t, a.qp.PostRecv(recv))
	must(s.t, b.qp.PostRecv(recv))
	over := func(err error) bool {
		if err != nil && !errors.Is(err, ErrClosed) {
			s.t.Error(err)
		}
		return err != nil
	}
	wait := func(e *end, n int) bool {
		var wcs [4]WC
		for n > 0 {
			k, err := e.cq.Wait(s.ctx, wcs[:])
			if over(err) {
				return false
			}
			for _, wc := range wcs[:k] {
				if wc.Status != Success {
					if !s.over.Load() {
						s.t.Errorf("completion %+v", wc)
					}
					return false
				}
			}
			n -= k
		}
		return true
	}
	s.run(func() bool {
		return !over(a.qp.PostSend(SendWR{Op: OpSend, Flags: Signaled})) && wait(a, 2) &&
			!over(a.qp.PostRecv(recv))
	})
	first := true
	s.run(func() bool { // the completion of its own SEND comes with the next receive
		n := 2
		if first {
			n = 1
		}
		first = false
		return wait(b, n) && !over(b.qp.PostRecv(recv)) &&
			!over(b.qp.PostSend(SendWR{Op: OpSend, Flags: Signaled}))
	})
}

// commands runs commands on a device at the same time.
func (s *storm) commands(e *end) {
	s.run(func() bool {
		if _, err := e.qp.Query(); err != nil {
			return false
		}
		m, err := e.pd.AllocMR(4096, LocalWrite)
		if err == nil {
			err = m.Close()
		}
		if err == nil {
			var q *QP
			if q, err = e.CreateQP(e.pd,
				QPConfig{SendCQ: e.cq, SendDepth: 1, RecvDepth: 1}); err == nil {
				err = q.Close()
			}
		}
		if err != nil && !errors.Is(err, ErrClosed) {
			s.t.Error(err)
		}
		runtime.Gosched()
		return err == nil
	})
}

// Both sides wait for every completion, one request at a time, so that each round needs about six
// wake-ups. With Manual progress the waiting goroutines take turns as owner. Other goroutines run
// commands, and Close ends all waits.
func TestNoWakeUpIsLost(t *testing.T) {
	links := map[string]func(t *testing.T, opts ...Option) (a, b *end){
		"memory": func(t *testing.T, opts ...Option) (a, b *end) {
			link := newLink(t, loopback.Config{})
			return newEnd(t, newDevice(t, link, 0, opts...), rigConfig{}),
				newEnd(t, newDevice(t, link, 1, opts...), rigConfig{})
		},
		"veth": func(t *testing.T, opts ...Option) (a, b *end) {
			pair, c, o := newVeth(t,
				veth.Options{}), rigConfig{opts: opts}, XDPOptions{Mode: XDPGeneric}
			return openEnd(t, &pair.A, o, c), openEnd(t, &pair.B, o, c)
		},
	}
	for name, make := range links {
		for _, pairs := range []int{1, 3} {
			t.Run(fmt.Sprintf("%s/pairs=%d", name, pairs), func(t *testing.T) {
				bothModes(t, func(t *testing.T, p Progress) {
					a, b := make(t, WithProgress(p), WithExpert(Expert{Spin: NoSpin}))
					s := newStorm(t)
					for range pairs {
						s.pingPong(pairOf(t, a, b))
					}
					if pairs > 1 {
						s.commands(a)
						s.commands(b)
					}
					s.end(func() {
						must(t, a.Close())
						must(t, b.Close())
					})
				})
			})
		}
	}
}

// Every posted work request completes, successfully or flushed, even if the QP goes to ERR
// meanwhile (IBA 10.3.1.7). There are several posters, and no other traffic that would wake the
// loop.
func TestEveryPostCompletes(t *testing.T) {
	bothModes(t, func(t *testing.T, p Progress) {
		link := newLink(t, loopback.Config{})
		a := newEnd(t, newDevice(t, link, 0, WithProgress(p), WithExpert(Expert{Spin: NoSpin})),
			rigConfig{})
		b := newEnd(t, newDevice(t, link, 1, WithProgress(p), WithExpert(Expert{Spin: NoSpin})),
			rigConfig{})
		s := newStorm(t)
		s.run(func() bool {
			x, y := pairOf(t, a, b)
			var posted atomic.Int64
			var posters sync.WaitGroup
			for _, post := range []func() error{
				func() error { return x.qp.PostSend(SendWR{Op: OpSend, Flags: Signaled}) },
				func() error { return x.qp.PostSend(SendWR{Op: OpSend, Flags: Signaled}) },
				func() error { return x.qp.PostRecv(RecvWR{}) },
			} {
				posters.Go(func() {
					for range 8 {
						if post() == nil {
							posted.Add(1)
						}
					}
				})
			}
			must(t, x.qp.Modify(&Attr{State: StateErr}, AttrState))
			posters.Wait()
			var wcs [32]WC
			for n := int64(0); n < posted.Load(); {
				k, err := x.cq.Wait(s.ctx, wcs[:])
				if err != nil {
					t.Error(err)
					return false
				}
				n += int64(k)
			}
			for _, e := range []*end{x, y} {
				must(t, e.qp.Close())
				must(t, e.cq.Close())
			}
			return true
		})
		s.end(func() {})
	})
}

// A post rings the doorbell while another goroutine owns the loop, awake or asleep.
func TestPostsBesideOwner(t *testing.T) {
	a, b := newRig(t, rigConfig{opts: []Option{WithProgress(Manual),
		WithExpert(Expert{Spin: NoSpin})}, depth: 512})
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	stop := make(chan struct{})
	var busy sync.WaitGroup
	drive(b.Device, stop, &busy)
	defer func() { close(stop); busy.Wait() }()
	const posters, each = 4, 100
	for range posters {
		busy.Go(func() {
			for range each {
				wr := SendWR{Op: OpWrite, Flags: Signaled, SGEs: []SGE{a.mr.SGE(0, 8)},
					RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}
				if err := a.qp.PostSend(wr); err != nil {
					t.Error(err)
				}
				runtime.Gosched()
			}
		})
	}
	var wcs [16]WC
	for got := 0; got < posters*each; {
		n, err := a.cq.Wait(ctx, wcs[:])
		if err != nil {
			t.Fatalf("after %d of %d completions: %v", got, posters*each, err)
		}
		got += n
	}
}

// The loss of a last packet is repaired while both sides block, even if it is the first loss after
// a long time.
func TestLossWhileBlocking(t *testing.T) {
	bothModes(t, func(t *testing.T, p Progress) {
		a, b := newRig(t, rigConfig{
			link: loopback.Config{Seed: 7, Plan: loopback.Plan{Loss: 0.2}},
			opts: []Option{WithProgress(p), WithExpert(Expert{Spin: NoSpin})},
		})
		ctx, cancel := context.WithTimeout(context.Background(), deadline)
		done := make(chan struct{})
		go func() {
			defer close(done)
			var wcs [1]WC
			_, _ = b.cq.Wait(ctx, wcs[:])
		}()
		defer func() { cancel(); <-done }()
		var wcs [1]WC
		for i := range 50 {
			must(t, a.qp.PostSend(SendWR{Op: OpWrite, Flags: Signaled, SGEs: []SGE{a.mr.SGE(0, 8)},
				RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}))
			if _, err := a.cq.Wait(ctx, wcs[:]); err != nil || wcs[0].Status != Success {
				t.Fatalf("WRITE %d: %v, %v", i, err, wcs[0].Status)
			}
		}
	})
}
