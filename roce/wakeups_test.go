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

	"github.com/gorxe/gorxe/internal/fence"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/qp"
	"github.com/gorxe/gorxe/xdp"
	"github.com/gorxe/gorxe/xdp/veth"
)

// stress is how long each of the tests here goes on: 10 s and more, beside something that keeps the processors busy, finds
// what gets lost once in a million times.
var stress = flag.Duration("stress", 60*time.Millisecond, "how long each test of lost wake-ups goes on")

// stuck is how long nothing may happen.
const stuck = 10 * time.Second

// lockKinds runs f in both modes, with the shards' lock as this kernel allows it, and as it is where there is no membarrier.
func lockKinds(t *testing.T, f func(t *testing.T, o Option)) {
	bothModes(t, func(t *testing.T, p Progress) {
		t.Run("light", func(t *testing.T) { f(t, WithProgress(p)) })
		t.Run("strict", func(t *testing.T) {
			asymmetric = func() bool { return false }
			defer func() { asymmetric = fence.Asymmetric }()
			f(t, WithProgress(p))
		})
	})
}

// storm is some goroutines that do the same over and over, and a watch over them.
type storm struct {
	t     *testing.T
	ctx   context.Context
	over  atomic.Bool
	moved atomic.Uint64
	all   sync.WaitGroup
}

func newStorm(t *testing.T) *storm { return &storm{t: t, ctx: t.Context()} }

// run repeats f until the storm is over, or f says that it is.
func (s *storm) run(f func() bool) {
	s.all.Go(func() {
		for !s.over.Load() && f() {
			s.moved.Add(1)
		}
	})
}

// end ends the storm after a while, by f, and complains if it gets stuck, in the middle or at the end.
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
			panic(fmt.Sprintf("%s is stuck after %d rounds (it was to end: %v)\n%s", s.t.Name(), last, ended, buf[:runtime.Stack(buf, true)]))
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

// pairOf makes another QP at each end, with CQs of their own, connected.
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

// talk is two goroutines that send to each other in turn, one SEND at a time, and block for every completion.
func (s *storm) talk(a, b *end) {
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
		return !over(a.qp.PostSend(SendWR{Op: OpSend, Flags: Signaled})) && wait(a, 2) && !over(a.qp.PostRecv(recv))
	})
	first := true
	s.run(func() bool { // its own SEND's completion comes with the next receive
		n := 2
		if first {
			n = 1
		}
		first = false
		return wait(b, n) && !over(b.qp.PostRecv(recv)) && !over(b.qp.PostSend(SendWR{Op: OpSend, Flags: Signaled}))
	})
}

// commands are what other goroutines ask of a shard meanwhile.
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
			if q, err = e.CreateQP(e.pd, QPConfig{SendCQ: e.cq, SendDepth: 1, RecvDepth: 1}); err == nil {
				err = q.Close()
			}
		}
		if err != nil && !errors.Is(err, ErrClosed) {
			s.t.Error(err)
		}
		time.Sleep(20 * time.Microsecond)
		return err == nil
	})
}

// Everybody blocks for everything, one request at a time: each round stands and falls with some six wake-ups. Whoever drives a shard by
// hand lets go of it for the next; commands come from elsewhere; and at last Close ends every wait.
func TestNoWakeUpIsLost(t *testing.T) {
	links := map[string]func(t *testing.T, o Option) (a, b *end){
		"memory": func(t *testing.T, o Option) (a, b *end) {
			link, c := newLink(t, loopback.Config{}), rigConfig{}
			return newEnd(t, newDevice(t, link, 0, o, WithExpert(Expert{Spin: NoSpin})), c), newEnd(t, newDevice(t, link, 1, o, WithExpert(Expert{Spin: NoSpin})), c)
		},
		"veth": func(t *testing.T, o Option) (a, b *end) {
			pair, c := newVeth(t, veth.Options{}), rigConfig{opts: []Option{o, WithExpert(Expert{Spin: NoSpin})}}
			return openEnd(t, &pair.A, xdp.Options{Mode: xdp.Generic}, c), openEnd(t, &pair.B, xdp.Options{Mode: xdp.Generic}, c)
		},
	}
	for name, make := range links {
		for _, talks := range []int{1, 3} {
			t.Run(fmt.Sprintf("%s/talks=%d", name, talks), func(t *testing.T) {
				lockKinds(t, func(t *testing.T, o Option) {
					a, b := make(t, o)
					s := newStorm(t)
					for range talks {
						s.talk(pairOf(t, a, b))
					}
					if talks > 1 {
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

// What was posted completes, as a success or flushed, wherever the QP's way to ERR meets the posts (IBA 10.3.1.7): several
// posters, no other traffic that would make the shard look again.
func TestEveryPostCompletes(t *testing.T) {
	lockKinds(t, func(t *testing.T, o Option) {
		link := newLink(t, loopback.Config{})
		a := newEnd(t, newDevice(t, link, 0, o, WithExpert(Expert{Spin: NoSpin})), rigConfig{})
		b := newEnd(t, newDevice(t, link, 1, o, WithExpert(Expert{Spin: NoSpin})), rigConfig{})
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

// A command that meets the end of a turn is run, by the one who gives it or by the one who lets go of the shard, though nobody drives it
// afterwards.
func TestCommandMeetsTurn(t *testing.T) {
	for name, kind := range map[string]func() bool{"light": fence.Asymmetric, "strict": func() bool { return false }} {
		t.Run(name, func(t *testing.T) {
			asymmetric = kind
			defer func() { asymmetric = fence.Asymmetric }()
			a := newDevice(t, newLink(t, loopback.Config{}), 0, WithProgress(Manual))
			s := newStorm(t)
			var turn atomic.Uint64
			s.run(func() bool {
				for was := turn.Load(); turn.Load() == was && !s.over.Load(); {
				}
				a.Progress()
				return true
			})
			s.run(func() bool {
				i := turn.Add(1)
				for range i % 512 { // meet at every distance
					_ = turn.Load()
				}
				return a.sh.do(func(qp.Time) {}) == nil
			})
			s.end(func() {})
		})
	}
}
