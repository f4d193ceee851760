package roce

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/gorxe/gorxe/qp"
)

// waitFor runs CQ.Wait in a goroutine.
func waitFor(ctx context.Context, cq *CQ, solicited bool) <-chan error {
	out := make(chan error, 1)
	go func() {
		wait := cq.Wait
		if solicited {
			wait = cq.WaitSolicited
		}
		n, err := wait(ctx, make([]WC, 4))
		if err == nil && n == 0 {
			err = errors.New("Wait returned no completion and no error")
		}
		out <- err
	}()
	return out
}

// drive runs steps of a device until stop is closed.
func drive(d *Device, stop <-chan struct{}, done *sync.WaitGroup) {
	done.Add(1)
	go func() {
		defer done.Done()
		for {
			select {
			case <-stop:
				return
			default:
				d.Progress()
			}
		}
	}()
}

// waiting waits until n callers wait on the CQ.
func waiting(t *testing.T, cq *CQ, n int32) {
	t.Helper()
	eventually(t, "callers of Wait", func() bool { return cq.waiters.Load() == n })
}

// sleeping waits until the loop of the device has slept.
func sleeping(t *testing.T, d *Device) {
	t.Helper()
	before := d.Counters().Waits
	eventually(t, "sleep of the loop", func() bool { return d.Counters().Waits > before })
}

func result(t *testing.T, c <-chan error, want error) {
	t.Helper()
	select {
	case err := <-c:
		if !errors.Is(err, want) {
			t.Fatalf("Wait: %v, want %v", err, want)
		}
	case <-time.After(deadline):
		t.Fatal("Wait does not return")
	}
}

func TestWaitCancel(t *testing.T) {
	bothModes(t, func(t *testing.T, p Progress) {
		leakCheck(t)
		a, _ := newRig(t, rigConfig{opts: []Option{WithProgress(p)}})
		ctx, cancel := context.WithCancel(context.Background())
		c := waitFor(ctx, a.cq, false)
		waiting(t, a.cq, 1)
		sleeping(t, a.Device)
		cancel()
		result(t, c, context.Canceled)

		ctx, cancel = context.WithTimeout(context.Background(), 20*time.Millisecond)
		defer cancel()
		result(t, waitFor(ctx, a.cq, false), context.DeadlineExceeded)
		if _, err := a.cq.Wait(ctx, nil); !errors.Is(err, ErrInvalid) {
			t.Errorf("Wait with an empty slice: %v", err)
		}
	})
}

// TestWaitWakes: two callers block, one on each side, and the post of a third goroutine wakes them.
// Several rounds cover the orders of arming, sleeping and completing.
func TestWaitWakes(t *testing.T) {
	bothModes(t, func(t *testing.T, p Progress) {
		a, b := newRig(t, rigConfig{opts: []Option{WithProgress(p)}})
		ctx, cancel := context.WithTimeout(context.Background(), deadline)
		defer cancel()
		for i := range 200 {
			must(t, b.qp.PostRecv(RecvWR{ID: 1}))
			ca, cb := waitFor(ctx, a.cq, false), waitFor(ctx, b.cq, false)
			if i%2 == 0 {
				waiting(t, a.cq, 1)
				waiting(t, b.cq, 1)
			}
			must(t, a.qp.PostSend(SendWR{Op: OpSend, Flags: Signaled}))
			result(t, ca, nil)
			result(t, cb, nil)
		}
	})
}

// TestManyWaiters: all callers wait on one CQ, and each completion wakes one. With Manual progress
// one of them runs the protocol at a time.
func TestManyWaiters(t *testing.T) {
	bothModes(t, func(t *testing.T, p Progress) {
		const callers, rounds = 4, 50
		a, b := newRig(t, rigConfig{opts: []Option{WithProgress(p)}})
		ctx, cancel := context.WithTimeout(context.Background(), deadline)
		defer cancel()
		stop := make(chan struct{})
		var other, all sync.WaitGroup
		if p == Manual {
			drive(b.Device, stop, &other)
		}
		for range callers {
			all.Add(1)
			go func() {
				defer all.Done()
				var wcs [1]WC
				for range rounds {
					wr := SendWR{Op: OpWrite, Flags: Signaled, SGEs: []SGE{a.mr.SGE(0, 8)},
						RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}
					if err := a.qp.PostSend(wr); err != nil {
						t.Error(err)
					}
					if n, err := a.cq.Wait(ctx, wcs[:]); n != 1 || err != nil {
						t.Errorf("Wait = %d, %v", n, err)
						return
					}
				}
			}()
		}
		all.Wait()
		close(stop)
		other.Wait()
	})
}

// TestWaitSolicited: a solicited SEND wakes the caller, another one does not (IBA 11.4.2.2).
func TestWaitSolicited(t *testing.T) {
	bothModes(t, func(t *testing.T, p Progress) {
		a, b := newRig(t, rigConfig{opts: []Option{WithProgress(p)}})
		must(t, b.qp.PostRecv(RecvWR{ID: 1}, RecvWR{ID: 2}))
		ctx, cancel := context.WithTimeout(context.Background(), deadline)
		defer cancel()
		c := waitFor(ctx, b.cq, true)
		waiting(t, b.cq, 1)
		must(t, a.qp.PostSend(SendWR{ID: 5, Op: OpSend, Flags: Signaled}))
		pollOK(t, 5, WCSend, a.cq)
		eventually(t, "completion", func() bool { return b.cq.Len() == 1 })
		for range 100 { // a caller that was woken would take the completion
			must(t, b.do(func(qp.Time) {}))
			runtime.Gosched()
		}
		if n := b.cq.Len(); n != 1 || len(c) > 0 {
			t.Fatalf("the caller was woken by an unsolicited completion (%d left in the CQ)", n)
		}
		must(t, a.qp.PostSend(SendWR{ID: 6, Op: OpSend, Flags: Signaled | Solicited}))
		pollOK(t, 6, WCSend, a.cq)
		result(t, c, nil)
	})
}

// TestOverrun: the overrun of a CQ is an event and an error, and moves its QP to ERR (IBA
// 10.2.2.3).
func TestOverrun(t *testing.T) {
	bothModes(t, func(t *testing.T, p Progress) {
		a, b := newRig(t, rigConfig{opts: []Option{WithProgress(p)}})
		small, err := a.CreateCQ(2)
		must(t, err)
		qa, err := a.CreateQP(a.pd, QPConfig{SendCQ: small, RecvCQ: a.cq})
		must(t, err)
		qb, err := b.CreateQP(b.pd, QPConfig{SendCQ: b.cq})
		must(t, err)
		connect(t, qa, qb)
		wr := SendWR{Op: OpWrite, Flags: Signaled, SGEs: []SGE{a.mr.SGE(0, 8)},
			RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}
		must(t, qa.PostSend(wr, wr, wr, wr))
		for end := time.Now().Add(deadline); small.Err() == nil && time.Now().Before(end); {
			a.Progress()
			b.Progress()
		}
		a.Progress()
		if e := nextEvent(t, a.Device, EventCQErr); e.CQ != small {
			t.Error("the event has another CQ")
		}
		var wcs [8]WC
		if n, err := small.Wait(context.Background(), wcs[:]); n != 2 || err != nil {
			t.Errorf("Wait = %d, %v; want 2 completions", n, err)
		}
		if _, err := small.Wait(context.Background(), wcs[:]); !errors.Is(err, ErrCQOverrun) {
			t.Errorf("Wait: %v, want %v", err, ErrCQOverrun)
		}
		if s := qa.State(); s != StateErr {
			t.Errorf("state %v, want ERR", s)
		}
	})
}

// TestWaitClosed: Wait returns when the CQ or the device is closed.
func TestWaitClosed(t *testing.T) {
	bothModes(t, func(t *testing.T, p Progress) {
		a, _ := newRig(t, rigConfig{opts: []Option{WithProgress(p)}})
		for _, closer := range []func(*CQ) error{(*CQ).Close,
			func(*CQ) error { return a.Close() }} {
			cq, err := a.CreateCQ(4)
			must(t, err)
			first, second := waitFor(context.Background(), cq, false), waitFor(context.Background(),
				cq, true)
			waiting(t, cq, 2)
			must(t, closer(cq))
			result(t, first, ErrClosed)
			result(t, second, ErrClosed)
		}
	})
}

// TestDrain: all posted work has completed when Drain returns.
func TestDrain(t *testing.T) {
	bothModes(t, func(t *testing.T, p Progress) {
		a, b := newRig(t, rigConfig{opts: []Option{WithProgress(p)}})
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
		defer cancel()
		must(t, a.qp.PostSend(SendWR{Op: OpSend})) // no receive is posted: RNR NAKs without end
		stop := make(chan struct{})
		var other sync.WaitGroup
		if p == Manual {
			drive(b.Device, stop, &other)
		}
		if err := a.qp.Drain(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Drain: %v", err)
		}
		if n := a.qp.Outstanding(); n != 1 {
			t.Errorf("Outstanding() = %d before the peer has received, want 1", n)
		}
		must(t, b.qp.PostRecv(RecvWR{}))
		must(t, a.qp.Drain(context.Background()))
		if n := a.qp.Outstanding(); n != 0 {
			t.Errorf("Outstanding() = %d after Drain, want 0", n)
		}
		close(stop)
		other.Wait()
	})
}
