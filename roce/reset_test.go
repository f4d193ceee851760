package roce

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorxe/gorxe/qp"
)

// TestResetDuringPost changes a QP to StateReset while another goroutine posts. What it posts must
// not stay in a queue, from which it would go to the next peer of the QP.
func TestResetDuringPost(t *testing.T) {
	const depth, rounds = 4096, 20
	a, b := newRig(t, rigConfig{depth: depth, opts: []Option{WithProgress(Manual)},
		qp: QPConfig{MaxInline: 8}})
	sends, recvs := make([]SendWR, depth), make([]RecvWR, depth)
	for i := range sends {
		sends[i] = SendWR{Op: OpWrite, Inline: make([]byte, 8), RemoteAddr: b.mr.Addr(),
			RKey: b.mr.RKey()}
		recvs[i] = RecvWR{SGEs: []SGE{a.mr.SGE(0, 8)}}
	}
	for _, post := range []struct {
		name string
		list func() error
	}{
		{"PostSend", func() error { return a.qp.PostSend(sends...) }},
		{"PostRecv", func() error { return a.qp.PostRecv(recvs...) }},
	} {
		for round := range rounds {
			var started atomic.Bool
			done := make(chan error)
			go func() {
				started.Store(true)
				done <- post.list()
			}()
			spinUntil(&started, time.Duration(round)*2*time.Microsecond)
			must(t, a.qp.Modify(&Attr{State: StateReset}, AttrState))
			if err := <-done; err != nil && !errors.Is(err, ErrQPState) {
				t.Fatalf("%s during the reset: %v", post.name, err)
			}
			var left int
			must(t, a.do(func(qp.Time) { left = a.qp.qp.SQLen() + a.qp.qp.RQLen() }))
			if left != 0 {
				t.Fatalf("%d work requests of %s are left after the reset, want 0", left, post.name)
			}
			must(t, a.qp.Connect(context.Background(), b.qp.Local(), ConnectOptions{}))
		}
	}
}

// TestEndSendsACK ends a QP when it has received a message whose ACK is still pending. The sender
// gets the ACK.
func TestEndSendsACK(t *testing.T) {
	for _, state := range []State{StateReset, StateErr} {
		a, b := newRig(t, rigConfig{opts: []Option{WithProgress(Manual)}})
		must(t, b.qp.PostRecv(RecvWR{SGEs: []SGE{b.mr.SGE(0, 8)}}))
		must(t, a.qp.PostSend(SendWR{Op: OpSend, SGEs: []SGE{a.mr.SGE(0, 8)}, Flags: Signaled}))
		var wc [1]WC
		for b.cq.Poll(wc[:]) == 0 {
			a.Progress()
		}
		must(t, b.qp.Modify(&Attr{State: state}, AttrState))
		for a.cq.Poll(wc[:]) == 0 {
		}
		if wc[0].Status != Success {
			t.Errorf("a SEND to a QP that changed to %v after it: %v, want %v", state, wc[0].Status,
				Success)
		}
	}
}

// A closed SRQ refuses SetLimit as PostRecv, not because of its depth.
func TestSetLimitOfClosedSRQ(t *testing.T) {
	_, b := newRig(t, rigConfig{})
	srq, err := b.CreateSRQ(b.pd, SRQConfig{Depth: 4})
	must(t, err)
	must(t, srq.Close())
	for _, n := range []int{0, 2} {
		if err := srq.SetLimit(n); !errors.Is(err, ErrClosed) {
			t.Errorf("SetLimit(%d) = %v, want %v", n, err, ErrClosed)
		}
	}
}

// TestSRQCloseDuringPost: SRQ.PostRecv posts nothing once Close has returned.
func TestSRQCloseDuringPost(t *testing.T) {
	const depth, rounds = 4096, 20
	a, _ := newRig(t, rigConfig{opts: []Option{WithProgress(Manual)}})
	recvs := make([]RecvWR, depth)
	for i := range recvs {
		recvs[i] = RecvWR{SGEs: []SGE{a.mr.SGE(0, 8)}}
	}
	for round := range rounds {
		s, err := a.CreateSRQ(a.pd, SRQConfig{Depth: depth})
		must(t, err)
		var started atomic.Bool
		done := make(chan error)
		go func() {
			started.Store(true)
			done <- s.PostRecv(recvs...)
		}()
		spinUntil(&started, time.Duration(round)*2*time.Microsecond)
		must(t, s.Close())
		closed := s.Len()
		if err := <-done; err != nil && !errors.Is(err, ErrClosed) {
			t.Fatalf("PostRecv during Close: %v", err)
		}
		if n := s.Len(); n != closed {
			t.Fatalf("%d receives after Close, then %d", closed, n)
		}
	}
}

// spinUntil spins until flag is set, and for d after that.
func spinUntil(flag *atomic.Bool, d time.Duration) {
	for !flag.Load() {
		runtime.Gosched()
	}
	for start := time.Now(); time.Since(start) < d; {
	}
}
