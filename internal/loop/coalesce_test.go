package loop

import (
	"bytes"
	"testing"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/qp"
)

func TestCoalesceDelay(t *testing.T) {
	const pace = 1000 // ns per frame of the stream
	for _, c := range []struct {
		name   string
		before int     // frames of the stream, one by one
		gap    qp.Time // ns since
		n      int     // frames that come now
		middle bool    // the last is in the middle of a message
		seen   uint32  // packets of that message so far
		total  uint32  // packets of that message; 0: unknown
		want   qp.Time
	}{
		{"first packet", 0, 0, 1, true, 1, 64, 0},
		{"second packet", 1, pace, 1, true, 2, 64, 2 * coalescePerFrame},
		{"first packet of a message, pace unknown", 1, 20 * pace, 1, true, 1, 64, 0},
		{"end of a message and start of the next, pace unknown", 1, 20 * pace, 2, true, 2, 64, 0},
		{"fourth packet", 3, pace, 1, true, 4, 64, 4 * coalescePerFrame},
		{"long stream", 1000, pace, 1, true, 1, 64, min(coalesceTime, coalescePackets*pace*3/4)},
		{"end of a message", 1000, pace, 1, false, 64, 64, 0},
		{"two packets before the end", 1000, pace, 1, true, 62, 64, 2 * pace * 3 / 4},
		{"message of two packets", 1000, pace, 1, true, 1, 2, pace * 3 / 4},
		{"unknown length", 1000, pace, 1, true, 8, 0, 8 * pace / 4},
		{"long message of unknown length", 1000, pace, 1, true, 1000, 0, min(coalesceShort, coalescePackets*pace/4)},
		{"longer than announced", 1000, pace, 1, true, 5, 4, 5 * pace / 4},
		{"large batch", 1000, coalesceEnough * pace, coalesceEnough, true, 32, 64, 0},
		{"small batch", 1000, 4 * pace, 4, true, 60, 64, 4 * pace * 3 / 4},
		{"pace becomes faster", 1000, pace, 2, true, 60, 64, 4 * pace / 2 * 3 / 4},
		{"pace becomes slower", 1000, 2 * pace, 1, true, 60, 64, 4 * (pace + pace/8) * 3 / 4},
		{"pause of the sender", 1000, streamGap, 1, true, 60, 64, 4 * (pace + pace/8) * 3 / 4},
		{"after the end of the stream", 1000, streamGap + 1, 1, true, 32, 64, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := coalescer{undisturbed: undisturbedEnough}
			now := qp.Time(1e9)
			for range c.before {
				now += pace
				g.multi, g.middle, g.seen = true, true, 2
				g.batch(now, 1)
			}
			now += c.gap
			g.multi, g.middle, g.seen, g.total = true, c.middle, c.seen, c.total
			g.batch(now, c.n)
			want := c.want
			if want != 0 {
				want += now
			}
			if g.until != want {
				t.Errorf("delay %d ns, want %d", g.until-now, c.want)
			}
		})
	}
}

// The delay is short if someone may wait for the end of the message.
func TestCoalesceShortDelay(t *testing.T) {
	const pace, rest = 1000, 12
	message := func(c *coalescer, ask bool) {
		c.packet(packetOf(bth.RCWriteFirst, false))
		c.packet(packetOf(bth.RCWriteLast, ask))
	}
	long, short := qp.Time(rest*pace*3/4), qp.Time(rest*pace/4)
	for _, test := range []struct {
		name string
		do   func(*coalescer)
		want qp.Time
	}{
		{"nothing", func(*coalescer) {}, long},
		{"local post", (*coalescer).posted, short},
		{"local post, then a message", func(c *coalescer) { c.posted(); message(c, false) }, short},
		{"local post, then many messages", func(c *coalescer) {
			c.posted()
			for range undisturbedEnough {
				message(c, false)
			}
		}, long},
		{"lost packets", (*coalescer).lost, short},
		{"small WRITE", func(c *coalescer) { c.packet(packetOf(bth.RCWriteOnly, false)) }, short},
		{"READ request", func(c *coalescer) { c.packet(packetOf(bth.RCReadRequest, false)) }, short},
		{"READ response", func(c *coalescer) { c.packet(packetOf(bth.RCReadResponseOnly, false)) }, short},
		{"message to another QP", func(c *coalescer) { message(c, false); c.from++; message(c, false) }, short},
		{"one request for an ACK", func(c *coalescer) { message(c, true) }, long},
		{"two requests", func(c *coalescer) { message(c, true); message(c, true) }, short},
		{"two requests, then none", func(c *coalescer) { message(c, true); message(c, true); message(c, false) }, long},
		{"two requests not in a row", func(c *coalescer) { message(c, true); message(c, false); message(c, true) }, long},
	} {
		c := coalescer{frames: streamFrames, pace: pace, last: 1e9, undisturbed: undisturbedEnough}
		test.do(&c)
		c.middle, c.seen, c.total = true, 3, 3+rest
		now := c.last + pace
		if c.batch(now, 1); c.until != now+test.want {
			t.Errorf("%s: delay %d ns, want %d", test.name, c.until-now, test.want)
		}
	}
	c := coalescer{
		frames: streamFrames, pace: pace, last: 1e9, middle: true, seen: 3, total: 3 + rest,
		undisturbed: undisturbedEnough,
	}
	c.batch(1e9+pace, 1)
	if c.posted(); c.until != 1e9+pace+coalesceShort {
		t.Errorf("local post during a delay: delay %d ns, want %d", c.until-1e9-pace, coalesceShort)
	}
	c = coalescer{frames: streamFrames, pace: 2 * pace, last: 1e9, middle: true, seen: 3, total: 103}
	if c.batch(1e9+pace, 1); c.until != 1e9+pace+coalesceShort {
		t.Errorf("long message: delay %d ns, want %d", c.until-1e9-pace, coalesceShort)
	}
}

// While packets get lost the delay stays short, because the sender waits for a NAK.
func TestCoalesceAfterLoss(t *testing.T) {
	for _, loss := range []float64{0, 0.05} {
		a, b := newPair(t, pairConfig{link: loopback.Config{Seed: 3, Plan: loopback.Plan{Loss: loss}}})
		const size, messages = 1 << 14, 4 * undisturbedEnough
		for range messages {
			a.write(t, b, size, 0)
		}
		driveUntil(t, a, b, func() bool { return a.qp.SQLen() == 0 })
		if n := b.coalesce.undisturbed; (n >= undisturbedEnough) != (loss == 0) {
			t.Errorf("loss %v: %d undisturbed messages, enough are %d", loss, n, undisturbedEnough)
		}
	}
}

// Whatever the sender's pace, and however wrong the first estimate: after a while the end of a
// message is seen soon after its arrival, and frames are coalesced.
func TestCoalesceFindsPace(t *testing.T) {
	const (
		messages = 400
		settled  = 200
	)
	for _, c := range []struct {
		estimate, pace qp.Time
		total          int // packets of a message
		batches        int // of a message, at most; 0: any number
	}{
		{0, 100, 64, 16}, {20_000, 100, 64, 16}, {50, 1300, 64, 16}, {20_000, 1300, 64, 16},
		{0, 1300, 16, 8}, {20_000, 1300, 16, 8}, {1300, 7000, 64, 0}, {20_000, 1300, 2, 0},
		{20_000, 1300, 3, 0}, {20_000, 1300, 5, 0}, {20_000, 600, 5, 0}, {20_000, 1300, 8, 0},
		{0, 1300, 5, 0},
	} {
		g := coalescer{
			pace: c.estimate, frames: streamFrames, last: 1e9, undisturbed: undisturbedEnough,
		}
		packets := make([]*bth.Packet, c.total)
		for i := range packets {
			packets[i] = packetOf(bth.RCWriteMiddle, false)
		}
		packets[0] = packetOf(bth.RCWriteFirst, false)
		packets[c.total-1] = packetOf(bth.RCWriteLast, false)
		packets[0].Payload = make([]byte, 256)
		bth.PutRETH(packets[0].BTH[packets[0].Info.RETH:], 0, 0, uint32(256*c.total))
		start, work := g.last, min(300, c.pace/2)
		batches, latest := 0, qp.Time(0)
		for now, seen := start, 0; seen < messages*c.total; {
			n := min(int((now-start)/c.pace)-seen, rxBatch)
			if n <= 0 {
				g.empty()
				now += 20
				continue
			}
			polled := now
			for range n {
				now += work
				g.packet(packets[seen%c.total])
				seen++
				if seen%c.total == 0 && seen > settled*c.total {
					latest = max(latest, now-start-qp.Time(seen)*c.pace)
				}
			}
			if seen > settled*c.total {
				batches++
			}
			g.batch(polled, n)
			now = max(now, g.until)
		}
		if limit := max(c.pace, 1300); latest > limit {
			t.Errorf("pace %d ns, estimate %d, %d packets: message seen %d ns late, want at most %d",
				c.pace, c.estimate, c.total, latest, limit)
		}
		if c.batches > 0 && batches > c.batches*(messages-settled) {
			t.Errorf("pace %d ns, estimate %d, %d packets: %d batches per message, want at most %d",
				c.pace, c.estimate, c.total, batches/(messages-settled), c.batches)
		}
	}
}

// Frames that the decoder dropped or that the engine did not get do not change the pace, and a
// delay is not a pause of the sender.
func TestCoalesceOtherFrames(t *testing.T) {
	g := coalescer{frames: streamFrames, pace: 1000, last: 1e9, undisturbed: undisturbedEnough}
	now := g.last + 1000
	for range coalesceEnough {
		g.multi, g.middle, g.seen, g.total = true, true, 4, 64
		g.batch(now, 1)
		if g.until-now <= burstGap {
			t.Fatalf("delay %d ns, want more than %d", g.until-now, burstGap)
		}
		now = g.until + 1000
	}
	if !g.paused(now) {
		t.Error("paused() = false after a coalesced stream")
	}
	pace := g.pace
	for range 100 {
		now += burstGap
		g.batch(now, 1)
	}
	if g.pace != pace {
		t.Errorf("unhandled frames changed the pace from %d to %d ns", pace, g.pace)
	}
}

// A packet's RETH gives the length of a WRITE. A SEND does not carry its length.
func TestCoalesceMessageLength(t *testing.T) {
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
		p := bth.Packet{
			Info: info, BTH: make([]byte, int(info.HeaderLen)+mtu), Payload: make([]byte, mtu),
		}
		if info.RETH > 0 {
			bth.PutRETH(p.BTH[info.RETH:], 0, 0, c.dma)
		}
		g := coalescer{seen: 7, total: 9}
		if g.packet(&p); !g.middle || g.seen != 1 || g.total != c.total {
			t.Errorf("%s of %d bytes: packet %d of %d, want 1 of %d", info.Name, c.dma, g.seen, g.total, c.total)
		}
	}
}

// slowPort delivers one frame per poll, and counts polls.
type slowPort struct {
	driver.Port
	polls int
}

func (p *slowPort) Receive(bufs []driver.Buf) int {
	p.polls++
	return p.Port.Receive(bufs[:1])
}

// During a delay the loop does not poll the receive ring, but does its other work. It polls before
// it sleeps. There is no delay after the end of a message.
func TestCoalesceSkipsReceive(t *testing.T) {
	var port *slowPort
	a, b := newPair(t, pairConfig{wrap: func(i int, p driver.Port) driver.Port {
		if i == 0 {
			return p
		}
		port = &slowPort{Port: p}
		return port
	}})
	for i := range a.mem {
		a.mem[i] = byte(i) ^ byte(i>>8)
	}
	a.write(t, b, memSize, qp.Signaled)
	driveUntil(t, a, b, func() bool { return b.coalesce.until != 0 })
	b.coalesce.until = b.now() + qp.Time(time.Hour)
	polls, steps := port.polls, b.ctr.Steps
	for range 100 {
		b.TryStep()
		b.link.Advance(time.Duration(coalesceBackground))
	}
	if port.polls != polls {
		t.Errorf("%d polls of the receive ring during a delay, want 0", port.polls-polls)
	}
	if n := b.ctr.Steps - steps; n < 100 {
		t.Errorf("%d steps in 100 us of a delay, want 100", n)
	}
	b.sleepOnce(t)
	if b.TryStep(); port.polls == polls {
		t.Error("no poll of the receive ring after the end of a sleep")
	}
	driveUntil(t, a, b, func() bool { return a.cq.Len() > 0 })
	if !bytes.Equal(a.mem, b.mem) {
		t.Error("the data differ")
	}
	if b.coalesce.until != 0 {
		t.Error("a delay after the end of a message")
	}
}

// sleepOnce makes the owner go to sleep and wakes it at once.
func (s *side) sleepOnce(t *testing.T) {
	t.Helper()
	if !s.mu.TryLock() {
		t.Fatal("the lock is not free")
	}
	s.sleep(func() bool { return true })
	s.unlock()
}
