package rftp

import (
	"errors"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/testbed"
)

// TestDriveIdle checks that goroutines with nothing to do leave the device to its own goroutine,
// and are woken by what comes later, also if another one drives.
func TestDriveIdle(t *testing.T) {
	g := newRig(t, testbed.Config{})
	cfg := small
	cfg.Drive = true
	g.connect(cfg, cfg)
	const n = 20
	var wg sync.WaitGroup
	wg.Go(func() {
		got, err := receive(g.ctx, g.conn[1])
		if err != nil || got[1] != n {
			t.Errorf("received %d blocks of %d: %v", got[1], n, err)
		}
	})
	wg.Go(func() {
		for range n {
			msg, err := g.conn[1].ReceiveMessage(g.ctx)
			if err != nil || string(msg) != "hello" {
				t.Errorf("ReceiveMessage() = %q, %v", msg, err)
				return
			}
		}
	})
	for range n {
		before := g.Dev[1].Counters().Waits
		for g.Dev[1].Counters().Waits == before && g.ctx.Err() == nil { // it does not sleep yet
			time.Sleep(time.Millisecond)
		}
		g.must(g.conn[0].SendMessage(g.ctx, []byte("hello")))
	}
	g.must(send(g.ctx, g.conn[0], n, 8192))
	g.must(g.conn[0].Finish(g.ctx))
	wg.Wait()
}

// TestDriveClosed checks that a device runs by itself again after a Conn that was driven has ended:
// closed by this side, or by the peer while this side's program does nothing.
func TestDriveClosed(t *testing.T) {
	for _, first := range []int{0, 1} {
		g := newRig(t, testbed.Config{})
		cfg := small
		cfg.Drive = true
		g.connect(cfg, cfg)
		waiting := make(chan error, 1)
		go func() {
			_, err := g.conn[1-first].GetReady(g.ctx)
			waiting <- err
		}()
		g.must(g.conn[first].SendMessage(g.ctx, []byte("hello")))
		g.must(g.conn[first].Close())
		if err := <-waiting; !errors.Is(err, ErrPeerClosed) && !errors.Is(err, io.EOF) {
			t.Errorf("GetReady() = %v, want ErrPeerClosed", err)
		}
		accepted := make(chan error, 1)
		go func() {
			c, err := g.l.Accept(g.ctx)
			if err == nil {
				err = c.Close()
			}
			accepted <- err
		}()
		other, err := Dial(g.ctx, g.Dev[0], g.l.Addr(), small)
		if err != nil {
			t.Fatal(err)
		}
		g.must(other.Close())
		g.must(<-accepted)
	}
}
