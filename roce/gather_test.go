package roce

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/qp"
)

// How long a shard gathers, by what came when.
func TestGatherTime(t *testing.T) {
	const pace = 1000 // ns a frame of the stream
	for _, c := range []struct {
		name   string
		before int     // frames of the stream, one by one
		gap    qp.Time // ns since
		n      int     // frames that come now
		midst  bool    // the last is of the midst of a message
		seen   uint32  // packets of that message so far
		total  uint32  // that it has; 0: unknown
		want   qp.Time
	}{
		{"the first packet of all", 0, 0, 1, true, 1, 64, 0},
		{"the second", 1, pace, 1, true, 2, 64, 2 * gatherSlope},
		{"the first of a message, after a while: no pace", 1, 20 * pace, 1, true, 1, 64, 0},
		{"the second of one, after another's end: no pace", 1, 20 * pace, 2, true, 2, 64, 0},
		{"a few packets later", 3, pace, 1, true, 4, 64, 4 * gatherSlope},
		{"deep in a stream", 1000, pace, 1, true, 1, 64, min(gatherTime, gatherPackets*pace*3/4)},
		{"the end of a message in a stream", 1000, pace, 1, false, 64, 64, 0},
		{"two packets before the end", 1000, pace, 1, true, 62, 64, 2 * pace * 3 / 4},
		{"a message of two packets", 1000, pace, 1, true, 1, 2, pace * 3 / 4},
		{"a message of unknown length", 1000, pace, 1, true, 8, 0, 8 * pace / 4},
		{"a long one of unknown length", 1000, pace, 1, true, 1000, 0, min(gatherShort, gatherPackets*pace/4)},
		{"longer than it said", 1000, pace, 1, true, 5, 4, 5 * pace / 4},
		{"many at once", 1000, gatherEnough * pace, gatherEnough, true, 32, 64, 0},
		{"fewer at once", 1000, 4 * pace, 4, true, 60, 64, 4 * pace * 3 / 4},
		{"faster: at once", 1000, pace, 2, true, 60, 64, 4 * pace / 2 * 3 / 4},
		{"slower: slowly", 1000, 2 * pace, 1, true, 60, 64, 4 * (pace + pace/8) * 3 / 4},
		{"the sender has paused: no more slowly", 1000, streamGap, 1, true, 60, 64, 4 * (pace + pace/8) * 3 / 4},
		{"after the end of the stream", 1000, streamGap + 1, 1, true, 32, 64, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := gatherer{free: freeMessages}
			now := qp.Time(1e9)
			for range c.before {
				now += pace
				g.long, g.midst, g.seen = true, true, 2
				g.received(now, 1)
			}
			now += c.gap
			g.long, g.midst, g.seen, g.total = true, c.midst, c.seen, c.total
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

// Who may be waiting for a message is not kept waiting: it is gathered for a quarter of its rest, as little as that may be.
func TestGatherForWhoWaits(t *testing.T) {
	const pace, rest = 1000, 12
	message := func(g *gatherer, ask bool) {
		g.handled(packetOf(bth.RCWriteFirst, false))
		g.handled(packetOf(bth.RCWriteLast, ask))
	}
	most, little := qp.Time(rest*pace*3/4), qp.Time(rest*pace/4)
	for _, c := range []struct {
		name string
		what func(*gatherer)
		want qp.Time
	}{
		{"nobody", func(*gatherer) {}, most},
		{"the program has posted", (*gatherer).posted, little},
		{"a message later", func(g *gatherer) { g.posted(); message(g, false) }, little},
		{"many messages later", func(g *gatherer) {
			g.posted()
			for range freeMessages {
				message(g, false)
			}
		}, most},
		{"packets get lost", (*gatherer).lost, little},
		{"a short message came", func(g *gatherer) { g.handled(packetOf(bth.RCWriteOnly, false)) }, little},
		{"a READ request came", func(g *gatherer) { g.handled(packetOf(bth.RCReadRequest, false)) }, little},
		{"an answer came", func(g *gatherer) { g.handled(packetOf(bth.RCReadResponseOnly, false)) }, little},
		{"another QP's came", func(g *gatherer) { message(g, false); g.from++; message(g, false) }, little},
		{"the peer has asked once", func(g *gatherer) { message(g, true) }, most},
		{"the peer asks each time", func(g *gatherer) { message(g, true); message(g, true) }, little},
		{"and no more", func(g *gatherer) { message(g, true); message(g, true); message(g, false) }, most},
		{"now and then", func(g *gatherer) { message(g, true); message(g, false); message(g, true) }, most},
	} {
		g := gatherer{frames: streamFrames, pace: pace, last: 1e9, free: freeMessages}
		c.what(&g)
		g.midst, g.seen, g.total = true, 3, 3+rest
		now := g.last + pace
		if g.received(now, 1); g.until != now+c.want {
			t.Errorf("%s: gathers for %d ns, want %d", c.name, g.until-now, c.want)
		}
	}
	g := gatherer{frames: streamFrames, pace: pace, last: 1e9, midst: true, seen: 3, total: 3 + rest, free: freeMessages}
	g.received(1e9+pace, 1)
	if g.posted(); g.until != 1e9+pace+gatherShort {
		t.Errorf("a post meanwhile: it still gathers until %d ns behind the frame, want %d", g.until-1e9-pace, gatherShort)
	}
	g = gatherer{frames: streamFrames, pace: 2 * pace, last: 1e9, midst: true, seen: 3, total: 103}
	if g.received(1e9+pace, 1); g.until != 1e9+pace+gatherShort {
		t.Errorf("a long message: gathers for %d ns, want %d", g.until-1e9-pace, gatherShort)
	}
}

// Where packets get lost the sender waits for word of it, so frames are not gathered for long.
func TestGatherAfterLoss(t *testing.T) {
	for _, loss := range []float64{0, 0.05} {
		a, b := newRig(t, rigConfig{link: loopback.Config{Seed: 3, Plan: loopback.Plan{Loss: loss}}, opts: []Option{WithProgress(Manual)}, mem: 1 << 16})
		const size, messages = 1 << 14, 4 * freeMessages
		for i := range messages {
			wr := SendWR{ID: uint64(i), Op: OpWrite, SGEs: []SGE{a.mr.SGE(0, size)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}
			if i == messages-1 {
				wr.Flags = Signaled
			}
			must(t, a.qp.PostSend(wr))
			if i%4 == 3 { // the queue is short
				driveUntil(t, a, b, func() bool { return a.qp.qp.SQLen() == 0 })
			}
		}
		if free := b.sh.gather.free; loss == 0 && free < freeMessages || loss > 0 && free >= freeMessages {
			t.Errorf("loss %v: %d messages count as undisturbed", loss, free)
		}
	}
}

// Whatever pace a sender has, and however wrong it was guessed: soon messages are seen when they have come, and yet frames are gathered.
func TestGatherFindsThePace(t *testing.T) {
	const (
		messages = 400
		settled  = 200
	)
	for _, c := range []struct {
		guess, pace qp.Time
		total       int // packets a message
		batches     int // to be had a message, at most; 0: no matter
	}{
		{0, 100, 64, 16}, {20_000, 100, 64, 16}, {50, 1300, 64, 16}, {20_000, 1300, 64, 16}, {0, 1300, 16, 8}, {20_000, 1300, 16, 8}, {1300, 7000, 64, 0},
		{20_000, 1300, 2, 0}, {20_000, 1300, 3, 0}, {20_000, 1300, 5, 0}, {20_000, 600, 5, 0}, {20_000, 1300, 8, 0}, {0, 1300, 5, 0},
	} {
		g := gatherer{pace: c.guess, frames: streamFrames, last: 1e9, free: freeMessages}
		packets := make([]*bth.Packet, c.total)
		for i := range packets {
			packets[i] = packetOf(bth.RCWriteMiddle, false)
		}
		packets[0], packets[c.total-1] = packetOf(bth.RCWriteFirst, false), packetOf(bth.RCWriteLast, false)
		packets[0].Payload = make([]byte, 256)
		bth.PutRETH(packets[0].BTH[packets[0].Info.RETH:], 0, 0, uint32(256*c.total))
		start, work := g.last, min(300, c.pace/2)
		batches, latest := 0, qp.Time(0)
		for now, came := start, 0; came < messages*c.total; {
			n := min(int((now-start)/c.pace)-came, rxBatch)
			if n <= 0 {
				g.nothing()
				now += 20
				continue
			}
			looked := now
			for range n {
				now += work
				g.handled(packets[came%c.total])
				came++
				if came%c.total == 0 && came > settled*c.total {
					latest = max(latest, now-start-qp.Time(came)*c.pace)
				}
			}
			if came > settled*c.total {
				batches++
			}
			g.received(looked, n)
			now = max(now, g.until)
		}
		if limit := max(c.pace, 1300); latest > limit {
			t.Errorf("%d ns a packet, guessed %d, %d a message: one was seen %d ns late, more than %d", c.pace, c.guess, c.total, latest, limit)
		}
		if c.batches > 0 && batches > c.batches*(messages-settled) {
			t.Errorf("%d ns a packet, guessed %d: %d batches a message of %d, want at most %d", c.pace, c.guess, batches/(messages-settled), c.total, c.batches)
		}
	}
}

// Frames that were dropped, or handled elsewhere, tell nothing of the pace; and what gathered is no pause.
func TestGatherOtherFrames(t *testing.T) {
	g := gatherer{frames: streamFrames, pace: 1000, last: 1e9, free: freeMessages}
	now := g.last + 1000
	for range gatherEnough {
		g.long, g.midst, g.seen, g.total = true, true, 4, 64
		g.received(now, 1)
		if g.until-now <= burstGap {
			t.Fatalf("gathers for %d ns, not long enough to be taken for a pause", g.until-now)
		}
		now = g.until + 1000
	}
	if !g.paused(now) {
		t.Error("a stream that was gathered is not known as one")
	}
	pace := g.pace
	for range 100 {
		now += burstGap
		g.received(now, 1)
	}
	if g.pace != pace {
		t.Errorf("frames that nobody has handled made the pace %d, it was %d", g.pace, pace)
	}
}

// While a stream of long messages pauses its receiver does not block, but it does soon after; and who gets small messages now and then is not meant.
func TestSpinInStream(t *testing.T) {
	a, _ := newRig(t, rigConfig{opts: []Option{WithProgress(Manual), WithExpert(Expert{Spin: 20 * time.Microsecond})}})
	for _, c := range []struct {
		name  string
		midst bool
		n     int
		want  qp.Time
	}{
		{"a stream", true, gatherEnough, streamGap},
		{"a few packets", true, gatherEnough - 1, 20_000},
		{"small messages", false, 1000, 20_000},
		{"small messages after a stream", true, -gatherEnough, 20_000},
	} {
		var spun qp.Time
		must(t, a.sh.do(func(now qp.Time) {
			idle := a.sh.newIdler()
			idle.stream = &gatherer{}
			for range max(c.n, -c.n) {
				now += 1000
				idle.stream.long, idle.stream.midst, idle.stream.seen = c.midst, c.midst, 2
				idle.stream.received(now, 1)
			}
			if c.n < 0 {
				now += gatherTime + burstGap + 1
				idle.stream.received(now, 1)
			}
			for ; !idle.after(0, now+spun); spun += 1000 {
			}
		}))
		if spun != c.want {
			t.Errorf("%s: spins %v ns, want %v", c.name, spun, c.want)
		}
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
		if g.handled(&p); !g.midst || g.seen != 1 || g.total != c.total {
			t.Errorf("%s of %d bytes: packet %d of %d, want 1 of %d", info.Name, c.dma, g.seen, g.total, c.total)
		}
	}
}

// slowPort lets frames come one at a time, and counts looks.
type slowPort struct {
	driver.Port
	driver.Network
	looks int
}

func (p *slowPort) Receive(bufs []driver.Buf) int {
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
	for end := time.Now().Add(deadline); g.until == 0; a.Progress() {
		if b.Progress(); time.Now().After(end) {
			t.Fatal("the midst of a long message is no reason to gather")
		}
	}
	g.until = b.sh.now() + qp.Time(time.Hour)
	before := port.looks
	for range 100 {
		b.Progress()
	}
	for end, turns := time.Now().Add(deadline), b.sh.ctr.turns; b.sh.ctr.turns < turns+10; b.Progress() {
		if time.Now().After(end) {
			t.Fatal("while it gathers a shard looks at nothing else either")
		}
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
