package roce

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/gorxe/gorxe/loopback"
)

// TestWaitCanceled: the end of the context ends only the wait. The work request completes later.
func TestWaitCanceled(t *testing.T) {
	bothModes(t, func(t *testing.T, p Progress) {
		a, b := newRig(t, rigConfig{opts: []Option{WithProgress(p)}})
		must(t, b.qp.PostRecv(RecvWR{ID: 7, SGEs: []SGE{b.mr.SGE(0, 8)}}))
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if _, err := b.cq.Wait(ctx, make([]WC, 1)); !errors.Is(err, context.Canceled) {
			t.Fatalf("Wait: %v, want %v", err, context.Canceled)
		}
		must(t, a.qp.PostSend(SendWR{Op: OpSend, Inline: []byte("data")}))
		if wc := poll(t, 1, b.cq, a.cq)[0]; wc.ID != 7 || wc.Status != Success {
			t.Errorf("completion %d, %v; want 7, success", wc.ID, wc.Status)
		}
	})
}

// TestCancel: Cancel completes all work requests, and afterwards the peer cannot write to their
// memory.
func TestCancel(t *testing.T) {
	bothModes(t, func(t *testing.T, p Progress) {
		a, b := newRig(t, rigConfig{opts: []Option{WithProgress(p)}})
		must(t, b.qp.PostRecv(RecvWR{ID: 1, SGEs: []SGE{b.mr.SGE(0, 8)}}, RecvWR{ID: 2}))
		must(t, b.qp.Cancel())
		for i, wc := range poll(t, 2, b.cq) {
			if wc.ID != uint64(i+1) || wc.Status != WRFlushErr {
				t.Errorf("completion %d, %v; want %d, %v", wc.ID, wc.Status, i+1, WRFlushErr)
			}
		}
		must(t, a.qp.PostSend(SendWR{Op: OpSend, Inline: []byte("data")}))
		for range 100 {
			a.Progress()
			b.Progress()
		}
		if b.cq.Len() != 0 || b.mr.Load8(0) != 0 {
			t.Error("a canceled receive got data")
		}
		must(t, b.qp.Close())
		if err := b.qp.Cancel(); !errors.Is(err, ErrClosed) {
			t.Errorf("Cancel after Close: %v, want %v", err, ErrClosed)
		}
	})
}

// TestPeerNotReady: SENDs to a peer without receives are reported by an event and by Drain.
func TestPeerNotReady(t *testing.T) {
	link := newLink(t, loopback.Config{})
	a, b := newEnd(t, newDevice(t, link, 0), rigConfig{}), newEnd(t, newDevice(t, link, 1), rigConfig{})
	o := ConnectOptions{MinRNRTimer: 1} // 10 us
	must(t, a.qp.Connect(context.Background(), b.qp.Local(), o))
	must(t, b.qp.Connect(context.Background(), a.qp.Local(), o))
	must(t, a.qp.PostSend(SendWR{ID: 1, Op: OpSend, Flags: Signaled, Inline: []byte("data")}))
	for e := range a.Events() {
		if e.Kind == EventPeerNotReady {
			if e.QP != a.qp {
				t.Errorf("event for QP %v, want %v", e.QP, a.qp)
			}
			break
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	err := a.qp.Drain(ctx)
	if !errors.Is(err, context.DeadlineExceeded) ||
		!strings.Contains(err.Error(), "the peer has posted no receive") {
		t.Errorf("Drain: %v, want a note about missing receives", err)
	}
	must(t, b.qp.PostRecv(RecvWR{SGEs: []SGE{b.mr.SGE(0, 8)}}))
	pollOK(t, 1, WCSend, a.cq)
}

// TestCQNeeded: Needed is the sum of the depths of all queues of the CQ, and the error of a CQ that
// was too small says how many completions it needed.
func TestCQNeeded(t *testing.T) {
	link := newLink(t, loopback.Config{})
	e := newEnd(t, newDevice(t, link, 0, WithProgress(Manual)), rigConfig{})
	cq, err := e.CreateCQ(3)
	must(t, err)
	srq, err := e.CreateSRQ(e.pd, SRQConfig{Depth: 100})
	must(t, err)
	check := func(what string, want int) {
		t.Helper()
		if got := cq.Needed(); got != want {
			t.Errorf("%s: Needed() = %d, want %d", what, got, want)
		}
	}
	check("without QPs", 0)
	q, err := e.CreateQP(e.pd, QPConfig{SendCQ: cq, SendDepth: 5, RecvDepth: 7})
	must(t, err)
	check("one QP", 12)
	other, err := e.CreateQP(e.pd, QPConfig{SendCQ: e.cq, RecvCQ: cq, SendDepth: 5, RecvDepth: 1})
	must(t, err)
	check("and another's receives", 13)
	var shared [2]*QP
	for i := range shared {
		shared[i], err = e.CreateQP(e.pd, QPConfig{SendCQ: cq, SRQ: srq, SendDepth: 1})
		must(t, err)
	}
	check("and two QPs with an SRQ", 115)
	must(t, errors.Join(shared[0].Close(), other.Close()))
	check("without one of them", 113)
	must(t, shared[1].Close())
	check("without both", 12)

	must(t, q.PostRecv(make([]RecvWR, 4)...))
	must(t, q.Cancel())
	if err := cq.Err(); !errors.Is(err, ErrCQOverrun) || !strings.Contains(err.Error(), "12") {
		t.Errorf("Err() = %v, want %v with the number 12", err, ErrCQOverrun)
	}
	must(t, q.Close())
	check("after Close", 0)
}
