package qp

import (
	"errors"
	"testing"

	"github.com/gorxe/gorxe/bth"
)

// A path MTU larger than the port's MTU is rejected (IBA 11.2.4.2).
func TestPathMTUWithinPorts(t *testing.T) {
	w, q := bare(t, RC, Init)
	q.eng.SetPortMTU(1024)
	a := connectAttr()
	a.State, a.Path, a.PathMTU = RTR, w.path(0), 2048
	mask := cells[RC][[2]State{Init, RTR}].required | AttrState
	if err := q.Modify(0, &a, mask); !errors.Is(err, ErrInvalidAttr) {
		t.Errorf("path MTU 2048 on a port of 1024: %v", err)
	}
	a.PathMTU = 1024
	must(t, q.Modify(0, &a, mask))
}

// The port's MTU falls below the path MTU of existing QPs. Their long packets are dropped, as a
// network would, and the QP fails after its retries. Nothing is written beyond the end of the
// buffer. Short messages still work, and everything works when the MTU rises again in time.
func TestPortMTUFalls(t *testing.T) {
	const small = 300
	k := newTalk(t, RC, func(_ *InitAttr, a *Attr) {
		a.PathMTU, a.Timeout, a.RetryCnt = 1024, 8,
			2
	})
	poll := func(space int) []int {
		k.now += 1000
		k.HandleDoorbells(k.now)
		k.HandleTimeout(k.now)
		var sizes []int
		buf := make([]byte, space)
		for k.HasTransmit(k.now) {
			tx := k.PollTransmit(k.now, buf)
			if tx == nil {
				break
			}
			must(t, new(bth.Packet).Parse(buf[tx.NetLen:tx.Len]))
			sizes = append(sizes, tx.Len)
		}
		return sizes
	}
	k.post(k.wr(1, OpWrite, 64), k.wr(2, OpWrite, 1500), k.wr(3, OpSend, 8))
	k.equal("packets", len(poll(small)), 2)
	k.equal("too long", k.Counters().DropLength, uint64(2))
	k.say(ack(0))
	k.completes("1 success RDMA_WRITE 64B")
	k.now += 1_100_000
	k.equal("retransmitted packets", len(poll(small)), 0)
	k.now += 1_100_000
	k.equal("retransmitted packets, with a larger MTU", len(poll(1200)), 1) // the oldest first
	k.say(ack(1))
	k.equal("the rest", len(poll(1200)), 2)
	k.say(ack(3))
	k.completes("2 success RDMA_WRITE 1500B", "3 success SEND 8B")

	k.post(k.wr(4, OpWrite, 1000))
	for range 3 {
		k.equal("packets", len(poll(small)), 0)
		k.now += 1_100_000
	}
	poll(small)
	k.completes("4 transport retry counter exceeded")
}

// The same for responses and for unacknowledged transports.
func TestPortMTUFallsForOthers(t *testing.T) {
	var buf [300]byte
	k := newTalk(t, RC, func(_ *InitAttr, a *Attr) { a.PathMTU = 1024 })
	k.say(k.read(0, 0, 2060), k.write(3, seq(8)))
	tx := k.PollTransmit(k.now, buf[:])
	var p bth.Packet
	must(t, p.Parse(buf[tx.NetLen:tx.Len]))
	k.equal("the one that fits", k.heard(&p), "RDMA READ response Last +2 msn=1 12B")
	k.hears("ACK +3 msn=2")

	for _, typ := range []Type{UC, UD} {
		k := newTalk(t, typ, func(_ *InitAttr, a *Attr) { a.PathMTU = 1024 })
		path := k.path(1)
		long, short := k.wr(1, OpSend, 900), k.wr(2, OpSend, 9)
		ah := NewAH(&path, nil)
		long.AH, short.AH = ah, ah
		k.post(long, short)
		k.HandleDoorbells(k.now)
		tx := k.PollTransmit(k.now, buf[:])
		must(t, p.Parse(buf[tx.NetLen:tx.Len]))
		k.equal("the one that fits", k.heard(&p), "SEND Only +1 9B")
		k.completes("1 success SEND 900B", "2 success SEND 9B")
		k.equal("too long", k.Counters().DropLength, uint64(1))
	}
}
