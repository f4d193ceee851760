package roce

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/qp"
)

// With Manual progress the first post after a turn that received something leaves with the post itself, further ones with the next
// turn. Posts out of the blue wait for a turn, too.
func TestAnswerLeavesWithThePost(t *testing.T) {
	a, b := newRig(t, rigConfig{opts: []Option{WithProgress(Manual)}})
	sent := func(e *end) uint64 {
		var n uint64
		must(t, e.sh.do(func(qp.Time) { c := e.sh.eng.Counters(); n = c.SentPkts - c.SentAcks }))
		return n
	}
	post := func(from, to *end) {
		must(t, from.qp.PostSend(SendWR{Op: OpWrite, SGEs: []SGE{from.mr.SGE(0, 8)}, RemoteAddr: to.mr.Addr(), RKey: to.mr.RKey()}))
	}
	post(a, b)
	if n := sent(a); n != 0 {
		t.Errorf("a post that answers nothing sent %d packets", n)
	}
	a.Progress()
	driveUntil(t, a, b, func() bool { return b.Counters().RcvdPkts > 0 })
	before := sent(b)
	post(b, a)
	if n := sent(b) - before; n != 1 {
		t.Errorf("the answer: %d packets left with it, want 1", n)
	}
	post(b, a)
	post(b, a)
	if n := sent(b) - before; n != 1 {
		t.Errorf("what follows the answer: %d packets have left before a turn, want 1", n)
	}
	b.Progress()
	if n := sent(b) - before; n != 3 {
		t.Errorf("after a turn %d packets have left, want 3", n)
	}
}

// driveUntil lets both ends turn until what is waited for has come.
func driveUntil(t *testing.T, a, b *end, come func() bool) {
	t.Helper()
	for end := time.Now().Add(deadline); !come(); b.Progress() {
		if a.Progress(); time.Now().After(end) {
			t.Fatal("what the test waits for has not come")
		}
	}
}

// lendingPort counts the frames that the device has and has not given back.
type lendingPort struct {
	driver.Port
	driver.Network
	lent    int
	behind  bool // a look while it had some
	answers int  // frames sent while it had some
}

func (p *lendingPort) Receive(bufs []driver.Buf) int {
	p.behind = p.behind || p.lent > 0
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
		p.answers += len(bufs)
	}
	return p.Port.Send(bufs)
}

// What was received goes back to the port behind the answer, before the next look, and at the latest when the device closes.
func TestAnswerLeavesBeforeBuffersGoBack(t *testing.T) {
	link := newLink(t, loopback.Config{})
	port := &lendingPort{Port: link.Port(1), Network: link.Port(1)}
	db, err := New(port, WithProgress(Manual))
	must(t, err)
	t.Cleanup(func() { db.Close() })
	a, b := newEnd(t, newDevice(t, link, 0, WithProgress(Manual)), rigConfig{}), newEnd(t, db, rigConfig{})
	connect(t, a.qp, b.qp)
	must(t, a.qp.PostSend(SendWR{Op: OpWrite, SGEs: []SGE{a.mr.SGE(0, 8)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}))
	driveUntil(t, a, b, func() bool { return port.lent > 0 })
	must(t, b.qp.PostSend(SendWR{Op: OpWrite, SGEs: []SGE{b.mr.SGE(0, 8)}, RemoteAddr: a.mr.Addr(), RKey: a.mr.RKey()}))
	if port.answers == 0 {
		t.Error("the answer left after the frame that it answers had gone back")
	}
	b.Progress()
	if port.behind {
		t.Error("a look at the ring before the frames of the last one went back")
	}
	must(t, a.qp.PostSend(SendWR{Op: OpWrite, SGEs: []SGE{a.mr.SGE(0, 8)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}))
	driveUntil(t, a, b, func() bool { return port.lent > 0 })
	must(t, db.Close())
	if port.lent != 0 {
		t.Errorf("%d frames are still lent when the device has closed", port.lent)
	}
}

// A post while another goroutine owns the shard, awake or asleep, rings: nothing that is posted stays behind.
func TestPostsBesideTheOwner(t *testing.T) {
	a, b := newRig(t, rigConfig{opts: []Option{WithProgress(Manual), WithExpert(Expert{Spin: NoSpin})}, depth: 512})
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	stop := make(chan struct{})
	var busy sync.WaitGroup
	drive(b.Device, stop, &busy)
	defer func() { close(stop); busy.Wait() }()
	const posters, each = 4, 100
	for range posters {
		busy.Go(func() {
			for range each {
				wr := SendWR{Op: OpWrite, Flags: Signaled, SGEs: []SGE{a.mr.SGE(0, 8)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}
				if err := a.qp.PostSend(wr); err != nil {
					t.Error(err)
				}
				time.Sleep(time.Microsecond)
			}
		})
	}
	var wcs [16]WC
	for got := 0; got < posters*each; {
		n, err := a.cq.Wait(ctx, wcs[:])
		if err != nil {
			t.Fatalf("after %d of %d: %v", got, posters*each, err)
		}
		got += n
	}
}

// An answer is built with the time of the turn that brought what it answers. A program that has thought for long in between is not taken for a
// peer that does not answer: no probe follows at once. (A machine that is busy elsewhere may cause one; not every time.)
func TestAnswerAfterAPause(t *testing.T) {
	const pause, tries = 20 * time.Millisecond, 5 // 4 ms without an answer are the first probe's time
	for range tries {
		link := newLink(t, loopback.Config{})
		a, b := newEnd(t, newDevice(t, link, 0, WithProgress(Manual)), rigConfig{}), newEnd(t, newDevice(t, link, 1, WithProgress(Manual)), rigConfig{})
		connect(t, a.qp, b.qp)
		must(t, a.qp.PostSend(SendWR{Op: OpWrite, SGEs: []SGE{a.mr.SGE(0, 8)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}))
		driveUntil(t, a, b, func() bool { return b.Counters().RcvdPkts > 0 })
		time.Sleep(pause)
		before := b.Counters().SentPkts
		must(t, b.qp.PostSend(SendWR{Op: OpWrite, SGEs: []SGE{b.mr.SGE(0, 8)}, RemoteAddr: a.mr.Addr(), RKey: a.mr.RKey()}))
		if b.Counters().SentPkts == before {
			t.Fatal("the answer has not left with its post")
		}
		for range 100 {
			b.Progress()
		}
		if b.Counters().Probes == 0 {
			return
		}
	}
	t.Errorf("a probe right behind the answer, %d times", tries)
}
