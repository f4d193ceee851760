package roce

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/qp"
	"github.com/gorxe/gorxe/roce/frame"
)

// How long a shard gathers, by what came when.
func TestGatherTime(t *testing.T) {
	for _, c := range []struct {
		name   string
		before int     // frames of the stream, one by one, 1 us apart
		gap    qp.Time // ns since
		n      int     // frames that come now
		midst  bool    // the last is of the midst of a message
		seen   uint32  // packets of that message so far
		total  uint32  // that it has; 0: unknown
		want   qp.Time
	}{
		{"the first packet of a message", 0, 0, 1, true, 1, 64, gatherSlope},
		{"a few packets later", 3, 1000, 1, true, 4, 64, 4 * gatherSlope},
		{"deep in a stream", 1000, 1000, 1, true, 32, 64, gatherTime},
		{"the end of a message in a stream", 1000, 1000, 1, false, 64, 64, 0},
		{"two packets before the end", 1000, 1000, 1, true, 62, 64, 2 * gatherRest},
		{"a message of two packets", 1000, 1000, 1, true, 1, 2, gatherRest},
		{"a message of unknown length", 1000, 1000, 1, true, 3, 0, 3 * gatherRest},
		{"a long one of unknown length", 1000, 1000, 1, true, 100, 0, gatherTime},
		{"longer than it said", 1000, 1000, 1, true, 5, 4, 5 * gatherRest},
		{"many at once", 1000, 1000, gatherEnough, true, 32, 64, 0},
		{"fewer at once", 1000, 1000, gatherEnough - 1, true, 32, 64, gatherTime},
		{"after a pause", 1000, streamGap + 1, 1, true, 32, 64, gatherSlope},
		{"after a pause, three at once", 1000, streamGap + 1, 3, true, 32, 64, 3 * gatherSlope},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := gatherer{seen: c.seen, total: c.total}
			now := qp.Time(1e9)
			for range c.before {
				now += 1000
				g.midst = true
				g.received(now, 1)
			}
			now += c.gap
			g.midst = c.midst
			g.received(now, c.n)
			want := c.want
			if want != 0 {
				want += now
			}
			if g.until != want {
				t.Errorf("gathers until %d, want %d", g.until-now, c.want)
			}
		})
	}
}

// What a packet tells of its message: a WRITE's RETH has the length, a SEND has none.
func TestGatherWithin(t *testing.T) {
	const mtu = 1024
	for _, c := range []struct {
		op    bth.Opcode
		dma   uint32
		total uint32
	}{
		{bth.RCWriteFirst, 2 * mtu, 2},
		{bth.RCWriteFirst, 2*mtu + 1, 3},
		{bth.UCWriteFirst, 10 * mtu, 10},
		{bth.RCSendFirst, 0, 0},
		{bth.RCReadResponseFirst, 0, 0},
	} {
		info := c.op.Info()
		p := bth.Packet{Info: info, BTH: make([]byte, int(info.HeaderLen)+mtu), Payload: make([]byte, mtu)}
		if info.RETH > 0 {
			bth.PutRETH(p.BTH[info.RETH:], 0, 0, c.dma)
		}
		g := gatherer{seen: 7, total: 9}
		if g.within(&p); !g.midst || g.seen != 1 || g.total != c.total {
			t.Errorf("%s of %d bytes: packet %d of %d, want 1 of %d", info.Name, c.dma, g.seen, g.total, c.total)
		}
	}
}

// slowPort lets frames come one at a time, and counts looks.
type slowPort struct {
	frame.Port
	frame.Network
	looks int
}

func (p *slowPort) Receive(bufs []frame.Buf) int {
	p.looks++
	return p.Port.Receive(bufs[:1])
}

// While a shard gathers it leaves the ring alone; before it sleeps it looks; and behind the end of a message it does not gather.
func TestGatherLeavesTheRingAlone(t *testing.T) {
	link := newLink(t, loopback.Config{})
	port := &slowPort{Port: link.Port(1), Network: link.Port(1)}
	db, err := New(port, WithProgress(Manual))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	c := rigConfig{mem: 1 << 16}
	a, b := newEnd(t, newDevice(t, link, 0, WithProgress(Manual)), c), newEnd(t, db, c)
	connect(t, a.qp, b.qp)
	want := fill(a.mr.Bytes(), 1)
	wr := SendWR{ID: 1, Op: OpWrite, Flags: Signaled, SGEs: []SGE{a.mr.SGE(0, len(want))}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}
	if err := a.qp.PostSend(wr); err != nil {
		t.Fatal(err)
	}
	g := &b.sh.gather
	for end := time.Now().Add(deadline); g.frames == 0; a.Progress() {
		if b.Progress(); time.Now().After(end) {
			t.Fatal("nothing arrives")
		}
	}
	if g.until == 0 {
		t.Error("the first packet of a long message is no reason to gather")
	}
	g.until = b.sh.now() + qp.Time(time.Hour)
	before := port.looks
	for range 100 {
		b.Progress()
	}
	if port.looks != before {
		t.Errorf("a shard that gathers looked at the ring %d times", port.looks-before)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond) // on a busy machine it takes that long to get to sleep
	defer cancel()
	var wcs [1]WC
	if _, err := b.cq.Wait(ctx, wcs[:]); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	if port.looks == before {
		t.Error("a shard went to sleep without a look at the ring")
	}
	poll(t, 1, a.cq, b.cq)
	if !bytes.Equal(b.mr.Bytes(), want) {
		t.Error("the message is another")
	}
	if g.until != 0 {
		t.Error("the shard gathers behind the end of a message")
	}
}
