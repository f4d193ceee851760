package roce

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"
)

// pong answers every message that e receives until stop is set, and spins in CQ.Poll meanwhile.
func pong(t *testing.T, e *end, stop *atomic.Bool) {
	var wcs [4]WC
	for !stop.Load() {
		for _, wc := range wcs[:e.cq.Poll(wcs[:])] {
			if wc.Opcode == WCRecv {
				reply(t, e)
			}
		}
	}
}

// reply posts a receive and a message.
func reply(t *testing.T, e *end) {
	if err := e.qp.PostRecv(RecvWR{SGEs: []SGE{e.mr.SGE(0, 64)}}); err != nil {
		t.Error(err)
	}
	if err := e.qp.PostSend(SendWR{Op: OpSend, Inline: []byte("ping")}); err != nil {
		t.Error(err)
	}
}

// Programs may spin in CQ.Poll with Auto progress, even if they and the progress goroutines share
// one processor. Without yielding, each message would take a time slice of the Go scheduler, 10 ms.
func TestSpinningPollsYield(t *testing.T) {
	for _, procs := range []int{1, 2} {
		t.Run(fmt.Sprint("GOMAXPROCS ", procs), func(t *testing.T) {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
			a, b := newRig(t, rigConfig{})
			must(t, a.qp.PostRecv(RecvWR{SGEs: []SGE{a.mr.SGE(0, 64)}}))
			reply(t, b) // the first message
			var stop atomic.Bool
			done := make(chan struct{})
			go func() { defer close(done); pong(t, b, &stop) }()
			defer func() { stop.Store(true); <-done }()

			const messages = 500
			start := time.Now()
			var wcs [4]WC
			n := 0
			for n < messages && time.Since(start) < deadline {
				for range wcs[:a.cq.Poll(wcs[:])] {
					n++
					reply(t, a)
				}
			}
			if n < messages {
				t.Errorf("%d round trips in %v, want %d", n, deadline, messages)
			}
		})
	}
}

// Device.Progress yields with Auto progress, for loops that poll memory.
func TestProgressYields(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	a, b := newRig(t, rigConfig{})
	const writes = 1000
	start := time.Now()
	for i := range uint64(writes) {
		a.mr.Store64(0, i+1)
		must(t, a.qp.PostSend(SendWR{Op: OpWrite, SGEs: []SGE{a.mr.SGE(0, 8)},
			RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}))
		for b.mr.Load64(0) != i+1 {
			b.Progress()
			if time.Since(start) > deadline {
				t.Fatalf("write %d has not arrived after %v", i, deadline)
			}
		}
	}
	must(t, a.qp.Drain(context.Background()))
}
