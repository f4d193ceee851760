package qp

import (
	"testing"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/mr"
)

func (k *talk) ucWrite(op bth.Opcode, psn int, dma int, data []byte) pkt {
	return pkt{op: op, psn: psn, va: k.at(0), key: k.rkey(), n: uint32(dma), data: data}
}

// IBA 9.8.2: UC messages are delivered, and complete at the sender when they have been sent.
// Nothing is acknowledged, and no packet asks.
func TestUCDelivers(t *testing.T) {
	w := newWorld(t, 1)
	a, b := w.pair(UC, func(_ *InitAttr, at *Attr) { at.PathMTU = 256 })
	e, peer := w.ends[0], w.ends[1]
	w.trace = func(from int, p *bth.Packet, _ bool) {
		if from == 1 || p.BTH.AckReq() {
			t.Errorf("end %d sends %s, AckReq %v", from, p.Info.Name, p.BTH.AckReq())
		}
	}
	data := e.fill(0, 2000, 5)
	va, key := peer.remote(0)
	w.recv(b, RecvWR{ID: 1, SGEs: []SGE{peer.sge(4096, 2000)}}, RecvWR{ID: 2})
	w.post(a, SendWR{ID: 1, Op: OpWrite, Flags: Signaled, SGEs: []SGE{e.sge(0, 2000)},
		RemoteAddr: va, RKey: key},
		SendWR{ID: 2, Op: OpSendImm, Flags: Signaled, SGEs: []SGE{e.sge(0, 2000)}, Imm: 9},
		SendWR{ID: 3, Op: OpWriteImm, Flags: Signaled, SGEs: []SGE{e.sge(0, 10)},
			RemoteAddr: va + 9000, RKey: key, Imm: 8})
	for _, want := range []string{"1 success RDMA_WRITE 2000B", "2 success SEND 2000B",
		"3 success RDMA_WRITE 10B"} {
		if got := wcText(w.wc(0)); got != want {
			t.Errorf("sender: %s, want %s", got, want)
		}
	}
	for _, want := range []string{"1 success RECV 2000B imm=9",
		"2 success RECV_RDMA_WITH_IMM 10B imm=8"} {
		if got := wcText(w.wc(1)); got != want {
			t.Errorf("receiver: %s, want %s", got, want)
		}
	}
	if string(peer.mem[:2000]) != string(data) || string(peer.mem[4096:][:2000]) != string(data) {
		t.Error("data differs")
	}
}

// IBA 9.8.2.2: a gap silently drops the message. The next FIRST or ONLY starts again with any PSN,
// and takes the receive of the dropped message.
func TestUCGapDropsTheMessage(t *testing.T) {
	for _, c := range []struct {
		name string
		ps   []pkt
	}{
		{"MIDDLE lost", []pkt{{op: bth.UCSendFirst, psn: 0, data: seq(256)},
			{op: bth.UCSendLast, psn: 2, data: seq(8)}}},
		{"LAST lost", []pkt{{op: bth.UCSendFirst, psn: 0, data: seq(256)}}},
		{"FIRST lost", []pkt{{op: bth.UCSendMiddle, psn: 1, data: seq(256)},
			{op: bth.UCSendLast, psn: 2, data: seq(8)}}},
		{"MIDDLE twice", []pkt{{op: bth.UCSendFirst, psn: 0, data: seq(256)},
			{op: bth.UCSendMiddle, psn: 1, data: seq(256)},
			{op: bth.UCSendMiddle, psn: 1, data: seq(256)},
			{op: bth.UCSendLast, psn: 2, data: seq(8)}}},
		{"out of order", []pkt{{op: bth.UCSendMiddle, psn: 1, data: seq(256)},
			{op: bth.UCSendFirst, psn: 0, data: seq(256)},
			{op: bth.UCSendLast, psn: 2, data: seq(8)}}},
		{"two halves of different messages",
			[]pkt{{op: bth.UCSendFirst, psn: 0, data: seq(256)},
				{op: bth.UCWriteLast, psn: 1, data: seq(8)}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := newTalk(t, UC)
			k.recvs(600)
			k.say(c.ps...)
			k.hears()
			k.completes()
			k.is(RTS)
			k.say(pkt{op: bth.UCSendOnly, psn: 7, data: seq(30)})
			k.completes("1 success RECV 30B")
			k.equal("received", string(k.mem[512<<10:][:30]), string(seq(30)))
			if k.Counters().DropSequence+k.Counters().DropLength == 0 {
				t.Error("no drop was counted")
			}
		})
	}
}

// PSNs can wrap within a message.
func TestUCAcrossWrap(t *testing.T) {
	k := newTalk(t, UC)
	data := seq(900)
	k.say(k.ucWrite(bth.UCWriteFirst, 0, 900, data[:256]),
		k.ucWrite(bth.UCWriteMiddle, 1, 0, data[256:512]),
		k.ucWrite(bth.UCWriteMiddle, 2, 0, data[512:768]),
		k.ucWrite(bth.UCWriteLast, 3, 0, data[768:]))
	k.equal("written", string(k.mem[:900]), string(data))
}

// IBA 9.8.2.2: what RC refuses, UC drops: there is no answer and no event, the QP works, and a
// later valid message is delivered.
func TestUCDropsWhatRCRefuses(t *testing.T) {
	for _, c := range []struct {
		name string
		p    func(k *talk) pkt
		n    func(c *Counters) uint64
	}{
		{"bad key", func(k *talk) pkt {
			p := k.ucWrite(bth.UCWriteOnly, 0, 8,
				seq(8))
			p.key = 1
			return p
		}, func(c *Counters) uint64 { return c.DropAccess }},
		{"DMALen wrong", func(k *talk) pkt { return k.ucWrite(bth.UCWriteOnly, 0, 9, seq(8)) },
			func(c *Counters) uint64 { return c.DropLength }},
		{"FIRST short", func(k *talk) pkt { return k.ucWrite(bth.UCWriteFirst, 0, 500, seq(8)) },
			func(c *Counters) uint64 { return c.DropLength }},
		{"SEND too long", func(k *talk) pkt { return pkt{op: bth.UCSendOnly, data: seq(51)} },
			func(c *Counters) uint64 { return c.DropLength }},
		{"SEND FIRST too long",
			func(k *talk) pkt { return pkt{op: bth.UCSendFirst, data: seq(256)} },
			func(c *Counters) uint64 { return c.DropLength }},
	} {
		k := newTalk(t, UC)
		k.recvs(50)
		k.snapshot()
		k.say(c.p(k))
		k.hears()
		k.unchanged()
		k.raises()
		k.completes()
		k.is(RTS)
		k.equal(c.name, c.n(k.Counters()), uint64(1))
		k.say(pkt{op: bth.UCSendOnly, psn: 1, data: seq(50)})
		k.completes("1 success RECV 50B")
	}
	k := newTalk(t, UC, func(_ *InitAttr, a *Attr) { a.Access = 0 })
	k.snapshot()
	k.say(k.ucWrite(bth.UCWriteOnly, 0, 8, seq(8)))
	k.unchanged()
	k.is(RTS)
}

// Without a receive a SEND, or the immediate of a WRITE, is lost.
func TestUCNoReceive(t *testing.T) {
	k := newTalk(t, UC)
	k.snapshot()
	p := k.ucWrite(bth.UCWriteOnlyImm, 1, 8, seq(8))
	k.say(pkt{op: bth.UCSendOnly, psn: 0, data: seq(8)}, p)
	k.hears()
	k.unchanged()
	k.equal("drops", k.Counters().DropNoRecv, uint64(2))
	k.recvs(8)
	p.psn = 2
	k.say(p)
	k.completes("1 success RECV_RDMA_WITH_IMM 8B imm=0")
}

// IBA 9.9.3 class A applies to every transport: an invalid receive is a local error and moves the
// QP to ERR.
func TestUnreliableReceiveMemoryDeregistered(t *testing.T) {
	for _, c := range []struct {
		typ Type
		p   pkt
	}{
		{UC, pkt{op: bth.UCSendOnly, data: seq(8)}},
		{UD, pkt{op: bth.UDSendOnly, data: seq(8), qkey: 0x1234}},
	} {
		k := newTalk(t, c.typ)
		m, _ := k.region(k.pd, 64, mr.LocalWrite)
		k.world.recv(k.q, RecvWR{ID: 5,
			SGEs: []SGE{{Addr: m.Addr(), Length: 64, LKey: bth.LKey(m.LKey())}}}, RecvWR{ID: 6})
		must(t, k.mrs.Deregister(m))
		k.say(c.p)
		k.hears()
		k.completes("5 local protection error", "6 Work Request Flushed Error")
		k.is(Err)
	}
}

// The receive of a dropped SEND is used by the next message that needs one, including a WRITE's
// immediate.
func TestUCHeldReceiveServesWriteImm(t *testing.T) {
	k := newTalk(t, UC)
	k.recvs(600, 8)
	k.say(pkt{op: bth.UCSendFirst, psn: 0, data: seq(256)},
		k.ucWrite(bth.UCWriteOnlyImm, 5, 8, seq(8)))
	k.completes("1 success RECV_RDMA_WITH_IMM 8B imm=0")
	k.say(pkt{op: bth.UCSendOnly, psn: 6, data: seq(8)})
	k.completes("2 success RECV 8B")
}

// UC has no other requests: RC opcodes are dropped before.
func TestUCDropsRCPackets(t *testing.T) {
	k := newTalk(t, UC)
	k.snapshot()
	k.say(k.write(0, seq(8)), k.read(0, 0, 8), k.fetchAdd(0, 0, 1), ack(0))
	k.hears()
	k.unchanged()
	k.equal("drops", k.Counters().DropType, uint64(4))
}
