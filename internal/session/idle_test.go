package session

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/endpoint"
	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/roce"
)

// A session ends when its peer is silent, and not before.
func TestWatchIdle(t *testing.T) {
	tb, err := testbed.New(testbed.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer tb.Close()
	var ends [2]*endpoint.Endpoint
	for i := range ends {
		if ends[i], err = endpoint.New(tb.Dev[i], endpoint.Config{Memory: 8}); err != nil {
			t.Fatal(err)
		}
		defer ends[i].Close()
	}
	if err := endpoint.Connect(t.Context(), ends[0], ends[1], roce.ConnectOptions{}); err != nil {
		t.Fatal(err)
	}
	const limit = 600 * time.Millisecond
	ctx, stop := WatchIdle(t.Context(), limit, func() []*roce.QP { return ends[1].QPs })
	defer stop()
	for start := time.Now(); time.Since(start) < limit+limit/4; time.Sleep(5 * time.Millisecond) {
		if ctx.Err() != nil {
			t.Fatalf("the session ended with traffic after %v", time.Since(start))
		}
		if err := ends[0].QP.PostSend(roce.SendWR{Op: roce.OpWrite,
			Flags: roce.Signaled}); err != nil {
			t.Fatal(err)
		}
		var wc [1]roce.WC
		if _, err := ends[0].CQ.Wait(t.Context(), wc[:]); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-ctx.Done():
	case <-time.After(20 * time.Second):
		t.Fatal("the session did not end without traffic")
	}
	if err := context.Cause(ctx); !errors.Is(err, ErrIdle) {
		t.Errorf("the cause is %v, want ErrIdle", err)
	}
	never, stop := WatchIdle(t.Context(), 0, nil)
	defer stop()
	if never.Err() != nil {
		t.Error("a session without a limit ended")
	}
}
