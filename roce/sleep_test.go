package roce

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/qp"
)

// While nothing gets lost a shard sleeps minSleep at least, whatever timer runs; after a loss exactly as long as it should, for a second.
func TestMinimumSleep(t *testing.T) {
	a, _ := newRig(t, rigConfig{opts: []Option{WithProgress(Manual)}})
	until := func(after qp.Time) (sleep, exact time.Duration) {
		must(t, a.sh.do(func(now qp.Time) {
			now += after
			next, ok := a.sh.eng.NextTimeout()
			if !ok {
				t.Fatal("no timer runs")
			}
			sleep, exact = a.sh.untilNext(now), max(0, time.Duration(next-now))
		}))
		return sleep, exact
	}
	must(t, a.qp.PostSend(SendWR{Op: OpSend})) // the peer does nothing
	a.Progress()
	if sleep, exact := until(0); sleep != minSleep || exact >= minSleep {
		t.Errorf("calm: sleeps %v, the timer is due in %v", sleep, exact)
	}
	for end := time.Now().Add(deadline); a.Counters().Probes == 0 && time.Now().Before(end); {
		a.Progress()
	}
	if sleep, exact := until(0); sleep != exact {
		t.Errorf("after a loss: sleeps %v, the timer is due in %v", sleep, exact)
	}
	if sleep, _ := until(qp.Time(2 * time.Second)); sleep != minSleep {
		t.Errorf("calm again: sleeps %v, want %v", sleep, minSleep)
	}
}

// Who has just lost a packet spins longer before it blocks; who is not to spin at all never does.
func TestSpinAfterLoss(t *testing.T) {
	a, b := newRig(t, rigConfig{opts: []Option{WithProgress(Manual), WithExpert(Expert{Spin: 20 * time.Microsecond})}})
	none, _ := newRig(t, rigConfig{opts: []Option{WithProgress(Manual), WithExpert(Expert{Spin: NoSpin})}})
	spins := func(e *end) (d qp.Time) {
		must(t, e.sh.do(func(now qp.Time) {
			idle := e.sh.newIdler()
			for ; !idle.after(0, now+d); d += 1000 {
			}
		}))
		return d
	}
	if d := spins(a); d != 20_000 {
		t.Errorf("spins %v ns, want 20 us", d)
	}
	wr := SendWR{Op: OpWrite, SGEs: []SGE{a.mr.SGE(0, 8)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}
	must(t, a.sh.do(func(now qp.Time) { // the packet is built, and lost
		if _, err := a.qp.qp.Post([]SendWR{wr}); err != nil {
			t.Error(err)
		}
		a.sh.eng.Posted(&a.qp.qp)
		a.sh.eng.PollTransmit(now, make([]byte, 4096))
	}))
	must(t, a.qp.PostSend(wr))
	driveUntil(t, a, b, func() bool { return a.Counters().Retransmits > 0 })
	for name, e := range map[string]*end{"requester": a, "responder": b} {
		if d := spins(e); d != longSpin*20_000 {
			t.Errorf("after a loss the %s spins %v ns, want %d", name, d, longSpin*20_000)
		}
	}
	if d := spins(none); d != 0 {
		t.Errorf("told not to spin, it spins %v ns", d)
	}
	must(t, a.sh.do(func(now qp.Time) {
		idle := a.sh.newIdler()
		idle.spin = math.MaxInt64
		if idle.after(0, now) || idle.after(0, now+1_000_000) {
			t.Error("told to spin for ever, it blocks after a loss")
		}
	}))
}

// Who is about to block has sent the ACKs that it owes, those that nobody asked for, too.
func TestACKBeforeBlocking(t *testing.T) {
	a, b := newRig(t, rigConfig{opts: []Option{WithProgress(Manual)}})
	must(t, a.qp.PostSend(SendWR{Op: OpWrite, SGEs: []SGE{a.mr.SGE(0, 8)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}))
	driveUntil(t, a, b, func() bool { return b.Counters().RcvdPkts > 0 })
	if !b.sh.mu.TryLock() {
		t.Fatal("the shard is not free")
	}
	b.sh.sleep(func() bool { return true })
	b.sh.unlock()
	if n := b.Counters().SentAcks; n != 1 {
		t.Errorf("%d ACKs sent, want 1", n)
	}
}

// A tail loss is repaired while both ends block, the first after a calm, too.
func TestLossWhileBlocking(t *testing.T) {
	bothModes(t, func(t *testing.T, p Progress) {
		a, b := newRig(t, rigConfig{link: loopback.Config{Seed: 7, Plan: loopback.Plan{Loss: 0.2}}, opts: []Option{WithProgress(p), WithExpert(Expert{Spin: NoSpin})}})
		ctx, cancel := context.WithTimeout(context.Background(), deadline)
		done := make(chan struct{})
		go func() {
			defer close(done)
			var wcs [1]WC
			_, _ = b.cq.Wait(ctx, wcs[:])
		}()
		defer func() { cancel(); <-done }()
		var wcs [1]WC
		for i := range 50 {
			must(t, a.qp.PostSend(SendWR{Op: OpWrite, Flags: Signaled, SGEs: []SGE{a.mr.SGE(0, 8)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}))
			if _, err := a.cq.Wait(ctx, wcs[:]); err != nil || wcs[0].Status != Success {
				t.Fatalf("WRITE %d: %v, %v", i, err, wcs[0].Status)
			}
		}
	})
}
