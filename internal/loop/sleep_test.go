package loop

import (
	"math"
	"testing"
	"time"

	"github.com/gorxe/gorxe/qp"
)

// sleepTime is at least minSleep while no packets get lost. For a second after a loss it is exact.
// On a crowded host a probe is no sign of a loss.
func TestMinimumSleep(t *testing.T) {
	a, b := newPair(t, pairConfig{})
	until := func(after qp.Time) (sleep, exact time.Duration) {
		now := a.now() + after
		next, ok := a.eng.NextTimeout()
		if !ok {
			t.Fatal("no timer runs")
		}
		return a.sleepTime(now), max(0, time.Duration(next-now))
	}
	a.write(t, b, 8, 0) // b does nothing
	a.TryStep()
	if sleep, exact := until(0); sleep != minSleep || exact >= minSleep {
		t.Errorf("before a loss: sleepTime() = %v, want %v; the timer is due in %v", sleep,
			minSleep, exact)
	}
	for a.eng.Counters().Probes == 0 {
		next, ok := a.NextTimeout()
		if !ok {
			t.Fatal("no timer runs")
		}
		a.link.AdvanceTo(int64(next))
		a.TryStep()
	}
	if sleep, exact := until(0); sleep != exact {
		t.Errorf("after a loss: sleepTime() = %v, want %v", sleep, exact)
	}
	a.SetCrowded(true)
	if sleep, _ := until(0); sleep != minSleep {
		t.Errorf("after a probe on a crowded host: sleepTime() = %v, want %v", sleep, minSleep)
	}
	a.SetCrowded(false)
	if sleep, _ := until(qp.Time(2 * time.Second)); sleep != minSleep {
		t.Errorf("2 s after a loss: sleepTime() = %v, want %v", sleep, minSleep)
	}
}

// spinTime returns how long a new spinner of s lets the owner spin.
func spinTime(s spinner, now qp.Time) (d qp.Time) {
	for ; !s.expired(0, now+d); d += 1000 {
	}
	return d
}

// After a loss both sides spin longer before they block, unless they must not spin at all.
func TestSpinAfterLoss(t *testing.T) {
	a, b := newPair(t, pairConfig{spin: 20 * time.Microsecond})
	if d := spinTime(a.newSpinner(), a.now()); d != 20_000 {
		t.Errorf("before a loss: spins %d ns, want 20000", d)
	}
	a.writeQuietly(t, b, 8, 0)
	a.eng.Posted(a.qp)
	a.eng.PollTransmit(a.now(), make([]byte, 4096)) // this packet is lost
	a.write(t, b, 8, 0)
	driveUntil(t, a, b, func() bool { return a.eng.Counters().Retransmits > 0 })
	for name, s := range map[string]*side{"requester": a, "responder": b} {
		if d := spinTime(s.newSpinner(), s.now()); d != longSpin*20_000 {
			t.Errorf("after a loss: the %s spins %d ns, want %d", name, d, longSpin*20_000)
		}
	}
	s := a.newSpinner()
	s.spin = 0
	if d := spinTime(s, a.now()); d != 0 {
		t.Errorf("Spin 0, after a loss: spins %d ns, want 0", d)
	}
	s.spin = math.MaxInt64
	if now := a.now(); s.expired(0, now) || s.expired(0, now+1_000_000) {
		t.Error("unlimited Spin, after a loss: the spinner expired")
	}
}

// The owner sends pending ACKs before it blocks, even those that were not requested.
func TestACKBeforeSleep(t *testing.T) {
	a, b := newPair(t, pairConfig{})
	a.write(t, b, 8, 0)
	driveUntil(t, a, b, func() bool { return b.eng.Counters().RcvdPkts > 0 })
	b.sleepOnce(t)
	if n := b.eng.Counters().SentAcks; n != 1 {
		t.Errorf("%d ACKs sent, want 1", n)
	}
}

// On a crowded host the owner does not wake up to send an ACK alone while the program replies to
// every message. It does if the reply does not come. Before the QP goes away, it sends the ACK.
func TestKeptACK(t *testing.T) {
	a, b := newPair(t, pairConfig{})
	b.SetCrowded(true)
	receive := func() (kept bool) {
		t.Helper()
		a.write(t, b, 8, qp.Signaled)
		driveUntil(t, a, b, b.eng.OwesAck)
		b.sleepOnce(t)
		_, kept = b.eng.KeptAckDue()
		return kept
	}
	untilKept := func() {
		t.Helper()
		for i := 0; !receive(); i++ {
			if i == 1000 {
				t.Fatal("no ACK is kept")
			}
			sent := b.sent()
			b.write(t, a, 8, 0)
			driveUntil(t, a, b, func() bool { return b.sent() > sent })
		}
	}
	untilKept()
	const want = time.Millisecond
	if d := b.sleepTime(b.now()); d > want || d < want-10*time.Microsecond {
		t.Errorf("sleepTime() = %v with an ACK that is kept, want %v", d, want)
	}
	acks := b.eng.Counters().SentAcks
	b.link.AdvanceTo(int64(b.now()) + int64(want))
	b.TryStep()
	if n := b.eng.Counters().SentAcks - acks; n != 1 {
		t.Errorf("%d ACKs without a reply, want 1", n)
	}

	untilKept()
	acks = b.eng.Counters().SentAcks
	b.Do(func(qp.Time) { b.SendPending(b.qp) })
	if n := b.eng.Counters().SentAcks - acks; n != 1 {
		t.Errorf("SendPending sends %d ACKs that are kept, want 1", n)
	}
}
