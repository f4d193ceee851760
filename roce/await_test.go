package roce_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
)

// Await returns when the condition holds, when ctx ends and when the device is closed.
func TestAwait(t *testing.T) {
	for _, p := range []roce.Progress{roce.Auto, roce.Manual} {
		a, _, closeAll := newHosts(roce.RC, roce.WithProgress(p))
		defer closeAll()
		if a.dev.Virtual() {
			t.Errorf("%v: Virtual() = true, want false", p)
		}
		var set atomic.Bool
		time.AfterFunc(time.Millisecond, func() { set.Store(true) })
		if err := a.dev.Await(context.Background(), set.Load); err != nil {
			t.Errorf("%v: Await() = %v, want nil", p, err)
		}
		never := func() bool { return false }
		ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		defer cancel()
		if err := a.dev.Await(ctx, never); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v: Await() = %v, want %v", p, err, context.DeadlineExceeded)
		}
		time.AfterFunc(time.Millisecond, func() { a.dev.Close() })
		if err := a.dev.Await(context.Background(), never); !errors.Is(err, roce.ErrClosed) {
			t.Errorf("%v: Await() = %v, want %v", p, err, roce.ErrClosed)
		}
	}
}

// In virtual time Await lets the clock move.
func TestAwaitVirtual(t *testing.T) {
	link, err := loopback.NewLink(loopback.Config{Virtual: true})
	if err != nil {
		t.Fatal(err)
	}
	sim := loopback.NewSim(link)
	h := newHost(link.Port(0), roce.RC,
		roce.WithExpert(roce.Expert{Clock: link.Now, Wait: sim.Wait}))
	defer h.dev.Close()
	sim.Add(h.dev)
	if !h.dev.Virtual() {
		t.Error("Virtual() = false, want true")
	}
	set := false
	sim.Go(func() {
		if err := sim.Sleep(time.Second); err != nil {
			t.Error(err)
		}
		set = true
	})
	if err := h.dev.Await(context.Background(), func() bool { return set }); err != nil {
		t.Errorf("Await() = %v, want nil", err)
	}
	if now := time.Duration(link.Now()); now < time.Second {
		t.Errorf("Await() returned after %v, want at least 1 s", now)
	}
}
