package loop

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

// A one-way stream ends when the program posts or the peer requests an ACK.
func TestOneWay(t *testing.T) {
	write := func(o *oneWay, n int) {
		for range n {
			o.active = false
			o.small(packetOf(bth.RCWriteOnly, false))
		}
	}
	one := func(op bth.Opcode, ask bool) func(*oneWay) {
		return func(o *oneWay) {
			o.active = false
			o.small(packetOf(op, ask))
		}
	}
	results := func(counts ...int) func(*oneWay) {
		return func(o *oneWay) {
			for _, n := range counts {
				o.result(n)
			}
		}
	}
	for _, c := range []struct {
		name   string
		before int // WRITEs
		do     func(*oneWay)
		after  int // WRITEs
		want   bool
	}{
		{"too few WRITEs", oneWayWrites - 1, nil, 0, false},
		{"enough WRITEs", oneWayWrites, nil, 0, true},
		{"many WRITEs", 10 * oneWayWrites, nil, 0, true},
		{"local post", 2 * oneWayWrites, (*oneWay).posted, 1, false},
		{"local post, then enough WRITEs", 2 * oneWayWrites, (*oneWay).posted, oneWayWrites, true},
		{"request for an ACK", 2 * oneWayWrites, one(bth.RCWriteOnly, true), 0, false},
		{"soon after the request", 2 * oneWayWrites, one(bth.RCWriteOnly, true), oneWayUnasked - 1, false},
		{"later after the request", 2 * oneWayWrites, one(bth.RCWriteOnly, true), oneWayUnasked, true},
		{"WRITE with immediate", 2 * oneWayWrites, one(bth.RCWriteOnlyImm, false), 0, false},
		{"SEND", 2 * oneWayWrites, one(bth.RCSendOnly, false), 0, false},
		{"READ request", 2 * oneWayWrites, one(bth.RCReadRequest, false), 0, false},
		{"ACK", 2 * oneWayWrites, one(bth.RCAck, false), 0, false},
		{"few failures in a row", oneWayWrites, results(0, 1, 2, oneWayFrames, 0, 1, 2), 1, true},
		{"too many failures in a row", oneWayWrites, results(0, 1, 2, 0), 1, false},
	} {
		var o oneWay
		if write(&o, c.before); c.do != nil {
			c.do(&o)
		}
		if write(&o, c.after); o.active != c.want {
			t.Errorf("%s: active = %v, want %v", c.name, o.active, c.want)
		}
	}
}

// The frames of a one-way stream are delayed for the full time, but never while the peer waits for
// ACKs.
func TestOneWayDelay(t *testing.T) {
	run := func(asks, posts int) (delays int) {
		var c coalescer
		now := qp.Time(1e9)
		for i := range 1000 {
			now += 700
			if posts > 0 && i%posts == 0 {
				c.posted()
			}
			c.packet(packetOf(bth.RCWriteOnly, asks > 0 && i%asks == 0))
			c.batch(now, 1)
			if c.until == now+coalesceOneWay {
				delays++
				now = c.until
				c.batch(now, oneWayFrames)
			}
		}
		return delays
	}
	if n := run(0, 0); n < 800 {
		t.Errorf("%d delays in 1000 frames of a one-way stream, want at least 800", n)
	}
	for _, every := range []int{1, 2, 4, 8} {
		if n := run(every, 0); n != 0 {
			t.Errorf("one request for an ACK in %d WRITEs: %d delays, want 0", every, n)
		}
	}
	if n := run(0, oneWayWrites-1); n != 0 {
		t.Errorf("a local post for every %d WRITEs: %d delays, want 0", oneWayWrites-1, n)
	}
	if n := run(32, 0); n < 500 {
		t.Errorf("one request for an ACK in 32 WRITEs: %d delays, want at least 500", n)
	}
}
