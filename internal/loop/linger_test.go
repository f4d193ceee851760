package loop

import (
	"testing"

	"github.com/gorxe/gorxe/qp"
)

// lateGuest rings a doorbell when the owner looks for the answer-th time; 0: never.
type lateGuest struct {
	*side
	looks, answer int
}

func (g *lateGuest) Sleeps(bool) bool { return false }

func (g *lateGuest) Busy() bool { return false }

func (g *lateGuest) Doorbells(_, _ bool) {
	g.link.AdvanceTo(int64(g.now() + lingerTime/8))
	if g.looks++; g.looks == g.answer {
		g.qp.RingDoorbell()
	}
}

func (g *lateGuest) Settle(qp.Time) {}

// While a peer waits for an ACK, the owner waits for the program's answer. If there is none, it
// does so less and less often.
func TestLinger(t *testing.T) {
	a, b := newPair(t, pairConfig{})
	g := &lateGuest{side: b}
	b.guest, b.last = g, b.now()
	if b.linger() || g.looks > 0 {
		t.Error("the owner waited although no ACK is pending")
	}
	b.guest = nil
	a.write(t, b, 8, qp.Signaled)
	driveUntil(t, a, b, func() bool { return b.eng.Counters().RcvdPkts > 0 })
	b.guest = g
	tries := 0
	const messages = 1 + 1 + 1 + 3 + 1 + 7 + 1 // the first, third, ... of these numbers are tries
	for range messages {
		g.looks, b.last = 0, b.now()
		if b.linger() {
			t.Fatal("linger() = true without a doorbell")
		}
		if g.looks > 0 {
			tries++
		}
	}
	if tries != 4 {
		t.Errorf("the owner waited for the answers to %d of %d messages, want 4", tries, messages)
	}
	g.looks, g.answer, b.last, b.lingers.skip = 0, 3, b.now(), 0
	if !b.linger() || g.looks != 3 || b.lingers.wait != 0 {
		t.Errorf("linger() = false, or looked %d times for an answer that came at the third", g.looks)
	}
}
