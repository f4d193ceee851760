package roce

import (
	"testing"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/qp"
)

// packetOf is a packet without content.
func packetOf(op bth.Opcode, ask bool) *bth.Packet {
	b := make([]byte, 64)
	bth.PutBTH(b, &bth.BTHFields{Opcode: op, AckReq: ask})
	return &bth.Packet{BTH: b, Info: op.Info()}
}

// Nobody may wait for what is gathered: not a program that answers, not a peer that asks.
func TestOneWay(t *testing.T) {
	write := func(o *oneway, n int) {
		for range n {
			o.stream = false
			o.ended(packetOf(bth.RCWriteOnly, false))
		}
	}
	one := func(op bth.Opcode, ask bool) func(*oneway) {
		return func(o *oneway) {
			o.stream = false
			o.ended(packetOf(op, ask))
		}
	}
	gather := func(counts ...int) func(*oneway) {
		return func(o *oneway) {
			for _, n := range counts {
				o.gathered(n)
			}
		}
	}
	for _, c := range []struct {
		name   string
		before int // WRITEs
		what   func(*oneway)
		after  int // WRITEs
		stream bool
	}{
		{"too few", aloneEnough - 1, nil, 0, false},
		{"enough", aloneEnough, nil, 0, true},
		{"many", 10 * aloneEnough, nil, 0, true},
		{"the program posts", 2 * aloneEnough, (*oneway).posted, 1, false},
		{"it posts no more", 2 * aloneEnough, (*oneway).posted, aloneEnough, true},
		{"the peer asks", 2 * aloneEnough, one(bth.RCWriteOnly, true), 0, false},
		{"behind a packet that asked", 2 * aloneEnough, one(bth.RCWriteOnly, true), askedEnough - 1, false},
		{"and further on", 2 * aloneEnough, one(bth.RCWriteOnly, true), askedEnough, true},
		{"a WRITE with immediate", 2 * aloneEnough, one(bth.RCWriteOnlyImm, false), 0, false},
		{"a SEND", 2 * aloneEnough, one(bth.RCSendOnly, false), 0, false},
		{"a READ request", 2 * aloneEnough, one(bth.RCReadRequest, false), 0, false},
		{"an ACK", 2 * aloneEnough, one(bth.RCAck, false), 0, false},
		{"in vain at times", aloneEnough, gather(0, 1, 2, fruitful, 0, 1, 2), 1, true},
		{"in vain too often", aloneEnough, gather(0, 1, 2, 0), 1, false},
	} {
		var o oneway
		if write(&o, c.before); c.what != nil {
			c.what(&o)
		}
		if write(&o, c.after); o.stream != c.stream {
			t.Errorf("%s: gathers %v, want %v", c.name, o.stream, c.stream)
		}
	}
}

// A stream that is deep enough is left alone for the whole time; a peer that waits for its ACKs, never.
func TestOneWayTime(t *testing.T) {
	run := func(asks, posts int) (long int) {
		var g gatherer
		now := qp.Time(1e9)
		for i := range 1000 {
			now += 700
			if posts > 0 && i%posts == 0 {
				g.posted()
			}
			g.handled(packetOf(bth.RCWriteOnly, asks > 0 && i%asks == 0))
			g.received(now, 1)
			if g.until == now+gatherAlone {
				long++
				now = g.until
				g.received(now, fruitful) // the last of those: it counts as one here
			}
		}
		return long
	}
	if n := run(0, 0); n < 800 {
		t.Errorf("gathered %d times in 1000 frames of a stream", n)
	}
	for _, every := range []int{1, 2, 4, 8} {
		if n := run(every, 0); n != 0 {
			t.Errorf("a peer with %d WRITEs under way waited %d times", every, n)
		}
	}
	if n := run(0, aloneEnough-1); n != 0 {
		t.Errorf("a program that posts now and then was kept waiting %d times", n)
	}
	if n := run(32, 0); n < 500 {
		t.Errorf("with a request for an ACK in 32: gathered %d times in 1000", n)
	}
}
