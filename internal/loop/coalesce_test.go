package loop

import (
	"bytes"
	"testing"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/qp"
)

// packetOf returns a packet without content.
func packetOf(op bth.Opcode, ask bool) *bth.Packet {
	b := make([]byte, 64)
	bth.PutBTH(b, &bth.BTHFields{Opcode: op, AckReq: ask})
	return &bth.Packet{BTH: b, Info: op.Info()}
}

// stream records n packets in the middle of a message.
func (c *coalescer) stream(n int) {
	for range n {
		c.packet(packetOf(bth.RCWriteMiddle, false))
	}
}

// Frames of a stream are coalesced while neither side may be waiting for the latest packet.
func TestCoalesce(t *testing.T) {
	one := func(op bth.Opcode, ask bool) func(*coalescer) {
		return func(c *coalescer) { c.packet(packetOf(op, ask)) }
	}
	for _, test := range []struct {
		name string
		do   func(*coalescer) // after coalesceQuiet packets of a stream
		want bool
	}{
		{"middle of a message", func(*coalescer) {}, true},
		{"end of a WRITE", one(bth.RCWriteLast, false), true},
		{"small WRITE", one(bth.RCWriteOnly, false), true},
		{"UC WRITE", one(bth.UCWriteOnly, false), true},
		{"request for an ACK", one(bth.RCWriteMiddle, true), false},
		{"WRITE with immediate", one(bth.RCWriteOnlyImm, false), false},
		{"middle of a SEND", one(bth.RCSendMiddle, false), true},
		{"end of a SEND", one(bth.RCSendLast, false), false},
		{"READ request", one(bth.RCReadRequest, false), false},
		{"middle of a READ response", one(bth.RCReadResponseMiddle, false), true},
		{"end of a READ response", one(bth.RCReadResponseLast, false), false},
		{"ACK", one(bth.RCAck, false), false},
		{"after a local post", func(c *coalescer) {
			c.posted()
			c.stream(coalesceQuiet - 1)
		}, false},
		{"long after a local post", func(c *coalescer) {
			c.posted()
			c.stream(coalesceQuiet)
		}, true},
		{"after a request for an ACK", func(c *coalescer) {
			c.packet(packetOf(bth.RCWriteLast, true))
			c.stream(1)
		}, true},
		{"after frequent requests for ACKs", func(c *coalescer) {
			c.packet(packetOf(bth.RCWriteLast, true))
			c.stream(coalesceAckGap - 1)
			c.packet(packetOf(bth.RCWriteLast, true))
			c.stream(coalesceQuiet - 1)
		}, false},
		{"after rare requests for ACKs", func(c *coalescer) {
			c.packet(packetOf(bth.RCWriteLast, true))
			c.stream(coalesceAckGap)
			c.packet(packetOf(bth.RCWriteLast, true))
			c.stream(1)
		}, true},
		{"no packet in the batch", func(c *coalescer) { c.batch(1000) }, false},
	} {
		var c coalescer
		c.stream(coalesceQuiet)
		test.do(&c)
		const now = 1e9
		want := qp.Time(0)
		if test.want {
			want = now + coalesceTime
		}
		if c.batch(now); c.until != want {
			t.Errorf("%s: until = %d, want %d", test.name, c.until, want)
		}
	}
}

// A short stream is not coalesced.
func TestCoalesceShortStream(t *testing.T) {
	var c coalescer
	c.stream(coalesceQuiet - 1)
	if c.batch(1e9); c.until != 0 {
		t.Errorf("after %d packets: until = %d, want 0", coalesceQuiet-1, c.until)
	}
	c.stream(1)
	if c.batch(1e9); c.until != 1e9+coalesceTime {
		t.Errorf("after %d packets: delay %d ns, want %d", coalesceQuiet, c.until-1e9, coalesceTime)
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
	for range 31 { // a stream that is long enough
		a.write(t, b, memSize, 0)
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

// Packets that the engine drops because they belong to no QP are not part of a stream: an attacker
// could otherwise delay the packets of others.
func TestCoalesceIgnoresDropped(t *testing.T) {
	for name, c := range map[string]struct {
		change func(a *frame.Address, f *bth.BTHFields)
		counts bool
	}{
		"of the QP":       {func(*frame.Address, *bth.BTHFields) {}, true},
		"unknown QP":      {func(_ *frame.Address, f *bth.BTHFields) { f.DestQP += 1000 }, false},
		"wrong P_Key":     {func(_ *frame.Address, f *bth.BTHFields) { f.PKey = 7 }, false},
		"another source":  {func(a *frame.Address, _ *bth.BTHFields) { a.Src[15]++ }, false},
		"wrong transport": {func(_ *frame.Address, f *bth.BTHFields) { f.Opcode = bth.UCWriteMiddle }, false},
	} {
		_, b := newPair(t, pairConfig{})
		addr := frame.Address{
			SrcMAC: b.link.Port(0).Info().MAC, DstMAC: b.link.Port(1).Info().MAC,
			Src: gidOf(b.link, 0), Dst: gidOf(b.link, 1), SrcPort: 0xc000, HopLimit: 64,
		}
		fields := bth.BTHFields{Opcode: bth.RCWriteMiddle, PKey: bth.DefaultPKey,
			DestQP: b.qp.QPN(), PSN: 1}
		c.change(&addr, &fields)
		buf := make([]byte, 2048)
		netLen := frame.PutHeaders(buf, &addr)
		bth.PutBTH(buf[netLen:], &fields)
		buf = buf[:netLen+int(fields.Opcode.Info().HeaderLen)+1024+bth.ICRCLen]
		new(frame.Encoder).Finish(buf, netLen)
		for range 2 * coalesceQuiet {
			b.handleFrame(b.now(), buf, false)
		}
		b.coalesce.batch(b.now())
		if got := b.coalesce.until != 0; got != c.counts || b.ctr.RxFrames != 2*coalesceQuiet {
			t.Errorf("%s: coalescing = %v after %d frames, want %v", name, got, b.ctr.RxFrames,
				c.counts)
		}
	}
}
