package roce_test

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
)

// delayedHosts returns two hosts whose packets travel for a time. Call it in the bubble.
func delayedHosts(t *testing.T, delay time.Duration, opts ...roce.Option) (a, b host,
	link *loopback.Link) {
	t.Helper()
	link, err := loopback.NewLink(loopback.Config{Plan: loopback.Plan{Delay: delay}})
	if err != nil {
		t.Fatal(err)
	}
	a, b = newHost(link.Port(0), roce.RC, opts...), newHost(link.Port(1), roce.RC, opts...)
	t.Cleanup(func() { _, _ = a.dev.Close(), b.dev.Close() })
	return a, b, link
}

// A test in a bubble of testing/synctest: devices with Auto progress run in simulated time, so that
// delays are exact and time-outs take no time. Create the link and the devices in the bubble, and
// close them in it.
func TestSynctest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const delay = 30 * time.Millisecond
		a, b, link := delayedHosts(t, delay)
		ctx := context.Background()
		l, err := b.dev.Listen(netip.MustParseAddrPort("10.77.0.2:7471"), roce.ListenOptions{})
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			if r, err := l.Accept(ctx); err != nil {
				t.Error(err)
			} else if _, err = r.Accept(ctx, b.qp, roce.AcceptOptions{}); err != nil {
				t.Error(err)
			}
		}()
		start := time.Now()
		if _, err := a.dev.Dial(ctx, l.Addr(), a.qp, roce.DialOptions{}); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took < 2*delay || took > 2*delay+time.Millisecond {
			t.Errorf("Dial took %v, want one round trip of %v", took, 2*delay)
		}

		write := roce.SendWR{Op: roce.OpWrite, Flags: roce.Signaled, Inline: []byte("x"),
			RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}
		start = time.Now()
		if err := a.qp.PostSend(write); err != nil {
			t.Fatal(err)
		}
		if wc := a.wait(); wc.Status != roce.Success {
			t.Error(wc.Status)
		}
		if took := time.Since(start); took < 2*delay || took > 2*delay+time.Millisecond {
			t.Errorf("a WRITE took %v, want one round trip of %v", took, 2*delay)
		}

		// All packets get lost: the retries are exhausted after eight time-outs.
		if err := link.SetPlan(0, 1, loopback.Plan{Loss: 1}); err != nil {
			t.Fatal(err)
		}
		start = time.Now()
		if err := a.qp.PostSend(write); err != nil {
			t.Fatal(err)
		}
		if wc := a.wait(); wc.Status != roce.RetryExcErr {
			t.Error(wc.Status)
		}
		if took := time.Since(start); took < 4*time.Second || took > 5*time.Second {
			t.Errorf("a WRITE failed after %v, want 8 time-outs of 0.54 s", took)
		}
	})
}

// spinning programs do not stop the time of a bubble.
func TestSynctestSpinning(t *testing.T) {
	for _, p := range []roce.Progress{roce.Auto, roce.Manual} {
		for _, spin := range []time.Duration{0, time.Hour} {
			synctest.Test(t, func(t *testing.T) {
				const delay = 20 * time.Millisecond
				a, b, _ := delayedHosts(t, delay, roce.WithProgress(p),
					roce.WithExpert(roce.Expert{Spin: spin}))
				connectHosts(a, b)
				start := time.Now()
				if err := a.qp.PostSend(roce.SendWR{Op: roce.OpWrite, Flags: roce.Signaled,
					Inline: []byte{1}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}); err != nil {
					t.Fatal(err)
				}
				for b.mr.Load8(0) == 0 {
					a.dev.Progress()
					b.dev.Progress()
				}
				if took := time.Since(start); took < delay || took > delay+time.Millisecond {
					t.Errorf("%v, spin %v: a WRITE arrived after %v, want %v", p, spin, took, delay)
				}
				var wcs [1]roce.WC
				for a.cq.Poll(wcs[:]) == 0 {
					b.dev.Progress()
				}
				if took := time.Since(start); took < 2*delay || took > 2*delay+time.Millisecond {
					t.Errorf("%v, spin %v: a WRITE took %v, want %v", p, spin, took, 2*delay)
				}
				ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
				defer cancel()
				if _, err := b.cq.Wait(ctx, wcs[:]); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%v, spin %v: Wait() = %v, want the deadline", p, spin, err)
				}
			})
		}
	}
}

// A bad link with delay and jitter, made by Inject, carries a stream in a bubble.
func TestSynctestStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		link, err := loopback.NewLink(loopback.Config{})
		if err != nil {
			t.Fatal(err)
		}
		plan := loopback.Plan{Loss: 0.01, Delay: time.Millisecond, Jitter: 100 * time.Microsecond}
		var hosts [2]host
		for i := range hosts {
			hosts[i] = newHost(loopback.Inject(link.Port(i), uint64(i), plan), roce.RC)
			defer hosts[i].dev.Close()
		}
		a, b := hosts[0], hosts[1]
		connectHosts(a, b)
		start := time.Now()
		const size, count = 4096, 500
		for i := range count {
			fill(a.mr.Bytes(), byte(i))
			if err := a.qp.PostSend(roce.SendWR{Op: roce.OpWrite, Flags: roce.Signaled,
				SGEs: []roce.SGE{a.mr.SGE(0, size)}, RemoteAddr: b.mr.Addr(),
				RKey: b.mr.RKey()}); err != nil {
				t.Fatal(err)
			}
			if wc := a.wait(); wc.Status != roce.Success {
				t.Fatalf("WRITE %d: %v", i, wc.Status)
			}
			if got := b.mr.Load8(size - 1); got != byte(i) {
				t.Fatalf("WRITE %d: the last byte is %d", i, got)
			}
		}
		if took := time.Since(start); took < count*2*plan.Delay {
			t.Errorf("%d WRITEs took %v, want at least %v each", count, took, 2*plan.Delay)
		}
	})
}

func fill(b []byte, v byte) {
	for i := range b {
		b[i] = v
	}
}
