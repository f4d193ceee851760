package loop

import (
	"testing"
	"time"

	"github.com/gorxe/gorxe/driver"
)

// The first post after a step that received frames is sent at once. Other posts wait for the next
// step.
func TestReplyIsSentAtOnce(t *testing.T) {
	a, b := newPair(t, pairConfig{})
	a.write(t, b, 8, 0)
	if n := a.sent(); n != 0 {
		t.Errorf("post without a received frame: %d packets sent, want 0", n)
	}
	driveUntil(t, a, b, func() bool { return b.eng.Counters().RcvdPkts > 0 })
	b.write(t, a, 8, 0)
	if n := b.sent(); n != 1 {
		t.Errorf("reply: %d packets sent, want 1", n)
	}
	b.write(t, a, 8, 0)
	b.write(t, a, 8, 0)
	if n := b.sent(); n != 1 {
		t.Errorf("posts after the reply: %d packets sent, want 1", n)
	}
	b.TryStep()
	if n := b.sent(); n != 3 {
		t.Errorf("after another step: %d packets sent, want 3", n)
	}
}

// lendingPort counts received frames that have not been released.
type lendingPort struct {
	driver.Port
	lent    int
	early   bool // a poll while lent > 0
	replies int  // frames sent while lent > 0
}

func (p *lendingPort) Receive(bufs []driver.Buf) int {
	p.early = p.early || p.lent > 0
	n := p.Port.Receive(bufs)
	p.lent += n
	return n
}

func (p *lendingPort) Release(bufs []driver.Buf) {
	p.lent -= len(bufs)
	p.Port.Release(bufs)
}

func (p *lendingPort) Send(bufs []driver.Buf) (int, error) {
	if p.lent > 0 {
		p.replies += len(bufs)
	}
	return p.Port.Send(bufs)
}

// Received frames are released after the reply and before the next poll, or when the loop stops.
func TestReplyBeforeRelease(t *testing.T) {
	var port *lendingPort
	a, b := newPair(t, pairConfig{wrap: func(i int, p driver.Port) driver.Port {
		if i == 0 {
			return p
		}
		port = &lendingPort{Port: p}
		return port
	}})
	a.write(t, b, 8, 0)
	driveUntil(t, a, b, func() bool { return port.lent > 0 })
	b.write(t, a, 8, 0)
	if port.replies == 0 {
		t.Error("the frame was released before the reply was sent")
	}
	b.TryStep()
	if port.early {
		t.Error("the receive ring was polled before frames were released")
	}
	a.write(t, b, 8, 0)
	driveUntil(t, a, b, func() bool { return port.lent > 0 })
	must(t, b.Stop())
	if port.lent != 0 {
		t.Errorf("%d frames not released by Stop, want 0", port.lent)
	}
}

// If the program takes long to reply, the retransmission timers start when the reply is sent.
func TestLateReply(t *testing.T) {
	a, b := newPair(t, pairConfig{})
	a.write(t, b, 8, 0)
	driveUntil(t, a, b, func() bool { return b.eng.Counters().RcvdPkts > 0 })
	b.link.Advance(20 * time.Millisecond) // the first probe is due after 4 ms
	b.write(t, a, 8, 0)
	if n := b.sent(); n != 1 {
		t.Fatalf("reply: %d packets sent, want 1", n)
	}
	for range 100 {
		b.TryStep()
	}
	if n := b.eng.Counters().Probes; n != 0 {
		t.Errorf("%d probes right after the reply, want 0", n)
	}
}
