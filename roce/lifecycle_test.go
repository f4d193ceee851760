package roce

import (
	"context"
	"errors"
	"io"
	"math"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorxe/gorxe/loopback"
)

// TestCloseOrders closes objects in several orders. Nothing is left over, a second Close is
// harmless, and objects in use stay.
func TestCloseOrders(t *testing.T) {
	orders := []string{"qcmpd", "dqcmp", "pmcqd", "cpmqd", "mqpcd", "qqd", "d"}
	bothModes(t, func(t *testing.T, p Progress) {
		for _, order := range orders {
			t.Run(order, func(t *testing.T) {
				leakCheck(t)
				a, b := newRig(t, rigConfig{opts: []Option{WithProgress(p)}})
				must(t, b.qp.PostRecv(RecvWR{ID: 1, SGEs: []SGE{b.mr.SGE(0, 8)}}))
				objects := map[rune]io.Closer{'q': a.qp, 'c': a.cq, 'm': a.mr, 'p': a.pd,
					'd': a.Device}
				for _, o := range order {
					if err := objects[o].Close(); err != nil && !errors.Is(err, ErrInUse) {
						t.Errorf("close %c: %v", o, err)
					}
				}
				for _, o := range "dqcmpd" {
					if err := objects[o].Close(); err != nil {
						t.Errorf("close %c again: %v", o, err)
					}
				}
				if _, err := a.AllocPD(); !errors.Is(err, ErrClosed) {
					t.Errorf("AllocPD on a closed device: %v", err)
				}
				if err := a.qp.PostSend(SendWR{Op: OpSend}); !errors.Is(err, ErrClosed) {
					t.Errorf("PostSend on a closed device: %v", err)
				}
				if err := a.qp.Modify(&Attr{}, AttrState); !errors.Is(err, ErrClosed) {
					t.Errorf("Modify on a closed device: %v", err)
				}
				must(t, b.Close())
			})
		}
	})
}

// TestInUse: Close returns ErrInUse for objects in use (EBUSY in verbs).
func TestInUse(t *testing.T) {
	a, _ := newRig(t, rigConfig{opts: []Option{WithProgress(Manual)}})
	for _, o := range []io.Closer{a.pd, a.cq} {
		if err := o.Close(); !errors.Is(err, ErrInUse) {
			t.Errorf("%T: %v, want %v", o, err, ErrInUse)
		}
	}
	must(t, a.qp.Close())
	if err := a.pd.Close(); !errors.Is(err, ErrInUse) {
		t.Errorf("PD with a region: %v", err)
	}
	must(t, a.mr.Close())
	must(t, a.pd.Close())
	must(t, a.cq.Close())
}

// TestCloseFlushes: a receive completes with an error when its QP or device is closed, and can
// still be polled.
func TestCloseFlushes(t *testing.T) {
	bothModes(t, func(t *testing.T, p Progress) {
		for _, closer := range []func(*end) error{func(e *end) error { return e.qp.Close() },
			func(e *end) error { return e.Close() }} {
			_, b := newRig(t, rigConfig{opts: []Option{WithProgress(p)}})
			must(t, b.qp.PostRecv(RecvWR{ID: 1}, RecvWR{ID: 2}))
			must(t, closer(b))
			var wcs [4]WC
			if n := b.cq.Poll(wcs[:]); n != 2 || wcs[0].ID != 1 || wcs[1].Status != WRFlushErr {
				t.Fatalf("%d completions, want one flushed receive: %+v", n, wcs)
			}
		}
	})
}

// TestPostDuringClose: every work request that is posted while its QP is closed completes.
func TestPostDuringClose(t *testing.T) {
	const posts = 200
	rounds := 100
	if testing.Short() {
		rounds = 25
	}
	bothModes(t, func(t *testing.T, p Progress) {
		for range rounds {
			a, b := newRig(t, rigConfig{opts: []Option{WithProgress(p)}})
			var taken, posting atomic.Int32
			var busy sync.WaitGroup
			for _, post := range []func() error{
				func() error {
					return a.qp.PostSend(SendWR{Op: OpWrite, Flags: Signaled,
						SGEs: []SGE{a.mr.SGE(0, 8)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()})
				},
				func() error { return a.qp.PostRecv(RecvWR{SGEs: []SGE{a.mr.SGE(8, 8)}}) },
			} {
				busy.Go(func() {
					posting.Add(1)
					for range posts {
						err := post()
						if err == nil {
							taken.Add(1)
							continue
						}
						if !errors.Is(err, ErrClosed) {
							t.Errorf("post during Close: %v", err)
						}
						return
					}
				})
			}
			for posting.Load() < 2 {
				runtime.Gosched()
			}
			must(t, a.qp.Close())
			busy.Wait()
			if n := a.cq.Len(); n != int(taken.Load()) {
				t.Fatalf("%d work requests posted, %d completed", taken.Load(), n)
			}
			must(t, a.Close())
			must(t, b.Close())
		}
	})
}

// TestCloseDoesNotOverrun: closing a QP does not overrun a CQ that lacks the capacity for the flush
// completions.
func TestCloseDoesNotOverrun(t *testing.T) {
	a, _ := newRig(t, rigConfig{opts: []Option{WithProgress(Manual)}})
	small, err := a.CreateCQ(2)
	must(t, err)
	q, err := a.CreateQP(a.pd, QPConfig{SendCQ: small})
	must(t, err)
	must(t, q.PostRecv(RecvWR{}, RecvWR{}, RecvWR{}))
	must(t, q.Close())
	if small.Err() != nil || small.Len() != 0 {
		t.Errorf("CQ.Err() = %v, %d completions", small.Err(), small.Len())
	}
}

// TestMRCloseDuringTraffic: after Close no byte of the memory changes, although the peer keeps
// writing. With -race, a late write is also reported as a race.
func TestMRCloseDuringTraffic(t *testing.T) {
	bothModes(t, func(t *testing.T, p Progress) {
		for round := range 10 {
			a, b := newRig(t, rigConfig{opts: []Option{WithProgress(p)}})
			mem := make([]byte, 1<<16)
			mr, err := b.pd.RegisterMR(mem, LocalWrite|RemoteWrite)
			must(t, err)
			stop := make(chan struct{})
			var busy sync.WaitGroup
			if p == Manual {
				drive(b.Device, stop, &busy)
			}
			first := make(chan struct{})
			busy.Add(1)
			go func() {
				defer busy.Done()
				var wcs [8]WC
				wr := SendWR{Op: OpWrite, Flags: Signaled, SGEs: []SGE{a.mr.SGE(0, 1<<16)},
					RemoteAddr: mr.Addr(), RKey: mr.RKey()}
				for n := 0; ; n++ {
					if n == 3+round {
						close(first)
					}
					if err := a.qp.PostSend(wr); err != nil {
						t.Error(err)
						return
					}
					k, err := a.cq.Wait(context.Background(), wcs[:])
					if k == 0 || err != nil || wcs[0].Status != Success {
						return // the region is closed: remote access error
					}
				}
			}()
			<-first
			must(t, mr.Close())
			for i := range mem {
				mem[i] = 0x55
			}
			waitState(t, a.qp, StateErr) // by then the peer has processed all packets
			close(stop)
			busy.Wait()
			for i := range mem {
				if mem[i] != 0x55 {
					t.Fatalf("byte %d was written after Close", i)
				}
			}
		}
	})
}

func waitState(t *testing.T, q *QP, want State) {
	t.Helper()
	for end := time.Now().Add(deadline); q.State() != want; {
		q.device().Progress()
		if time.Now().After(end) {
			t.Fatalf("state %v, want %v", q.State(), want)
		}
	}
}

// TestCloseUnderLoad closes the device while goroutines post, poll, wait, register memory and read
// counters.
func TestCloseUnderLoad(t *testing.T) {
	bothModes(t, func(t *testing.T, p Progress) {
		leakCheck(t)
		for range 5 {
			a, b := newRig(t, rigConfig{opts: []Option{WithProgress(p)}})
			var all sync.WaitGroup
			run := func(f func() bool) {
				all.Add(1)
				go func() {
					defer all.Done()
					for f() {
					}
				}()
			}
			wr := SendWR{Op: OpWrite, Flags: Signaled, SGEs: []SGE{a.mr.SGE(0, 4096)},
				RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}
			run(func() bool {
				err := a.qp.PostSend(wr)
				return err == nil || errors.Is(err, ErrSQFull)
			})
			for range 2 {
				run(func() bool {
					_, err := a.cq.Wait(context.Background(), make([]WC, 8))
					return err == nil
				})
			}
			run(func() bool { b.Progress(); a.Counters(); return !a.closing.Load() })
			run(func() bool {
				mr, err := a.pd.AllocMR(4096, LocalWrite)
				if err != nil {
					return false
				}
				return mr.Close() == nil
			})
			eventually(t, "traffic", func() bool { return a.Counters().Completions > 100 })
			var closers sync.WaitGroup
			for range 2 {
				closers.Add(1)
				go func() { defer closers.Done(); _ = a.Close() }()
			}
			closers.Wait()
			all.Wait()
			must(t, b.Close())
		}
	})
}

// TestManyGoroutines uses several QPs of one device from many goroutines, with Auto progress.
// Atomics at the peer count the messages.
func TestManyGoroutines(t *testing.T) {
	const workers, rounds = 8, 100
	link := newLink(t, loopback.Config{})
	a := newEnd(t, newDevice(t, link, 0), rigConfig{})
	b := newEnd(t, newDevice(t, link, 1), rigConfig{})
	work := func(t *testing.T, w int) {
		t.Parallel()
		cq, err := a.CreateCQ(64)
		must(t, err)
		qa, err := a.CreateQP(a.pd, QPConfig{SendCQ: cq})
		must(t, err)
		qb, err := b.CreateQP(b.pd, QPConfig{SendCQ: b.cq})
		must(t, err)
		connect(t, qa, qb)
		mr, err := a.pd.AllocMR(4096, LocalWrite)
		must(t, err)
		for range rounds {
			must(t, qa.PostSend(SendWR{ID: 9, Op: OpFetchAdd, Flags: Signaled,
				SGEs: []SGE{mr.SGE(0, 8)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey(),
				SwapAdd: uint64(w + 1)}))
			b.mr.Add64(8, 1)
			pollOK(t, 9, WCFetchAdd, cq)
		}
		must(t, qa.Close())
		must(t, qb.Close())
		must(t, cq.Close())
		must(t, mr.Close())
	}
	t.Run("all", func(t *testing.T) {
		for w := range workers {
			t.Run(strconv.Itoa(w), func(t *testing.T) { work(t, w) })
		}
	})
	if got, want := b.mr.Load64(0), uint64(rounds*workers*(workers+1)/2); got != want {
		t.Errorf("sum %d, want %d", got, want)
	}
	if got := b.mr.Load64(8); got != workers*rounds {
		t.Errorf("local sum %d, want %d", got, workers*rounds)
	}
}

// TestForeign: objects of two devices cannot be combined.
func TestForeign(t *testing.T) {
	a, b := newRig(t, rigConfig{opts: []Option{WithProgress(Manual)}})
	if _, err := a.CreateQP(a.pd, QPConfig{SendCQ: b.cq}); !errors.Is(err, ErrForeign) {
		t.Errorf("QP with the CQ of another device: %v", err)
	}
	if _, err := a.CreateSRQ(b.pd, SRQConfig{Depth: 1}); !errors.Is(err, ErrForeign) {
		t.Errorf("SRQ in the PD of another device: %v", err)
	}
	p, err := b.AllocPD()
	must(t, err)
	must(t, p.Close())
	if _, err := a.CreateSRQ(p, SRQConfig{Depth: 1}); !errors.Is(err, ErrForeign) {
		t.Errorf("SRQ in a closed PD of another device: %v, want %v", err, ErrForeign)
	}
}

// TestPostErrors checks PostError (bad_wr in verbs).
func TestPostErrors(t *testing.T) {
	a, b := newRig(t, rigConfig{depth: 4, opts: []Option{WithProgress(Manual)}})
	wr := SendWR{Op: OpWrite, SGEs: []SGE{a.mr.SGE(0, 8)}, RemoteAddr: b.mr.Addr(),
		RKey: b.mr.RKey()}
	bad := wr
	bad.SGEs = []SGE{{Addr: 1, Length: 8, LKey: 2}}
	var part *PostError
	if err := a.qp.PostSend(wr, wr, bad, wr); !errors.As(err, &part) || part.Posted != 2 ||
		!errors.Is(err, ErrInvalidKey) {
		t.Errorf("list with a bad third work request: %v", err)
	}
	if err := a.qp.PostSend(bad); !errors.Is(err, ErrInvalidKey) {
		t.Errorf("bad key: %v", err)
	}
	for _, n := range []int{-1, math.MaxUint32 + 1, math.MaxUint32 + 9} {
		long := wr
		long.SGEs = []SGE{a.mr.SGE(0, n)}
		if err := a.qp.PostSend(long); !errors.Is(err, ErrInvalidKey) {
			t.Errorf("SGE of %d bytes: %v, want %v", n, err, ErrInvalidKey)
		}
	}
	if err := a.qp.PostSend(wr, wr, wr); !errors.As(err, &part) || part.Posted != 2 ||
		!errors.Is(err, ErrSQFull) {
		t.Errorf("full send queue: %v", err)
	}
	recv := RecvWR{}
	if err := a.qp.PostRecv(recv, recv, recv, recv, recv); !errors.As(err, &part) ||
		part.Posted != 4 || !errors.Is(err, ErrRQFull) {
		t.Errorf("full receive queue: %v", err)
	}
	fresh, err := a.CreateQP(a.pd, QPConfig{SendCQ: a.cq})
	must(t, err)
	if err := fresh.PostSend(wr); !errors.Is(err, ErrQPState) {
		t.Errorf("send before RTS: %v", err)
	}
}
