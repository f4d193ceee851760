package qp

import (
	"fmt"
	"testing"

	"github.com/gorxe/gorxe/bth"
)

// IBA 9.7.4.1.2: the packet with the expected PSN is executed and increments the expected PSN. The
// test starts two PSNs before the wrap, so these PSNs are 0xfffffe, 0xffffff, 0, 1. IBA 9.7.7.1:
// the MSN counts completed messages, so the packets of one message share an MSN.
func TestExpectedPSNAcrossWrap(t *testing.T) {
	k := newTalk(t, RC)
	data := seq(3*talkMTU + 10)
	for i, p := range []struct {
		op   bth.Opcode
		msn  int
		from int
		to   int
	}{
		{bth.RCWriteFirst, 0, 0, 256},
		{bth.RCWriteMiddle, 0, 256, 512},
		{bth.RCWriteMiddle, 0, 512, 768},
		{bth.RCWriteLast, 1, 768, 778},
	} {
		k.say(pkt{op: p.op, psn: i, va: k.at(0), key: k.rkey(), n: uint32(len(data)),
			data: data[p.from:p.to]})
		k.hears(fmt.Sprintf("ACK %+d msn=%d", i, p.msn))
	}
	k.equal("written", string(k.mem[:len(data)]), string(data))
	k.say(k.write(4, seq(1)))
	k.hears("ACK +4 msn=2")
}

// IBA 9.7.5.1.1: without AckReq no ACK is due. The next packet with AckReq acknowledges all. IBA
// 9.7.5.1.2: one ACK may answer many requests.
func TestCoalescedACKs(t *testing.T) {
	k := newTalk(t, RC)
	quiet := k.write(0, seq(8))
	quiet.noAck = true
	k.say(quiet)
	k.hears()
	k.say(k.write(1, seq(8)), k.write(2, seq(8)), k.write(3, seq(8)))
	k.hears("ACK +3 msn=4")
	k.equal("ACKs", k.Counters().SentAcks, uint64(1))
}

// An ACK is delayed by at most ackSoon, and not at all after ackBatch packets.
func TestACKDelay(t *testing.T) {
	k := newTalk(t, RC)
	k.say(k.write(0, seq(8)))
	if k.HasTransmit(k.now) {
		t.Error("the ACK was sent within the step in which its request arrived")
	}
	if d, ok := k.NextTimeout(); !ok || d != k.now+ackSoon {
		t.Errorf("NextTimeout is %v, %v; the ACK is due at %v", d, ok, k.now+ackSoon)
	}
	k.now += ackSoon
	if !k.HasTransmit(k.now) {
		t.Error("the ACK was not sent in time")
	}
	k.hears("ACK +0 msn=1")
	for i := range ackBatch {
		k.say(k.write(1+i, seq(8)))
	}
	if !k.HasTransmit(k.now) {
		t.Error("a batch of packets did not cause an immediate ACK")
	}
}

// A reply that the program posts late precedes the ACK of the request. It is only one packet: more
// requests do not delay the ACK.
func TestLateReplyPrecedesACK(t *testing.T) {
	k := newTalk(t, RC)
	k.say(k.write(0, seq(8)))
	k.now += 10 * ackSoon // the program is woken up
	k.post(k.wr(1, OpSend, 300), k.wr(2, OpSend, 4))
	k.hears("SEND First +0 256B", "ACK +0 msn=1", "SEND Last +1 44B", "SEND Only +2 ask 4B")

	// Without a reply, and while requests must wait, the ACK does not wait for them.
	k.say(k.write(1, seq(8)))
	k.now += 10 * ackSoon
	k.hears("ACK +1 msn=2")
	if err := k.modify(SQD); err != nil {
		t.Fatal(err)
	}
	k.say(k.write(2, seq(8)))
	k.now += 10 * ackSoon
	k.post(k.wr(3, OpSend, 4))
	k.hears("ACK +2 msn=3")
}

// With AckFirst, the ACK of a message that completed a receive precedes requests that are posted
// later. The ACK of another message waits, and without AckFirst all do.
func TestAckFirst(t *testing.T) {
	k := newTalk(t, RC)
	k.recvs(64)
	k.say(send(0, seq(8)))
	k.post(k.wr(2, OpSend, 4))
	k.hears("SEND Only +0 ask 4B")

	k = newTalk(t, RC, func(a *InitAttr, _ *Attr) { a.AckFirst = true })
	k.recvs(64)
	k.say(send(0, seq(8)))
	k.post(k.wr(2, OpSend, 4))
	k.hears("ACK +0 msn=1", "SEND Only +0 ask 4B")

	k.say(k.write(1, seq(8)))
	k.post(k.wr(3, OpSend, 4))
	k.hears("SEND Only +1 ask 4B")
	k.now += ackSoon
	k.hears("ACK +1 msn=2")
}

// Only one packet precedes the ACK, also if each step sends one packet, as with a rate or while the
// port has no space for more.
func TestOneReplyPrecedesACK(t *testing.T) {
	k := newTalk(t, RC)
	k.say(k.write(0, seq(8)))
	k.now += 10 * ackSoon
	k.post(k.wr(1, OpSend, 4*talkMTU))
	k.HandleDoorbells(k.now)
	var buf [2048]byte
	for i, want := range []bth.Opcode{bth.RCSendFirst, bth.RCAck, bth.RCSendMiddle} {
		tx := k.PollTransmit(k.now, buf[:])
		if tx == nil {
			t.Fatalf("no packet in step %d", i)
		}
		if got := bth.BTH(buf[tx.NetLen:tx.Len]).Opcode(); got != want {
			t.Errorf("step %d sends %v, want %v", i, got, want)
		}
		k.Copied()
		k.now += ackSoon
	}
}

// Packets without AckReq are acknowledged too (IBA 9.7.5.1.2), after a longer delay, so that the
// requester's slots are freed.
func TestUnrequestedACK(t *testing.T) {
	k := newTalk(t, RC)
	quiet := k.write(0, seq(8))
	quiet.noAck = true
	k.say(quiet)
	due := k.now + ackLate
	if d, ok := k.NextTimeout(); !ok || d != due {
		t.Errorf("NextTimeout is %v, %v; the ACK is due at %v", d, ok, due)
	}
	k.now = due - 1001
	k.hears()
	k.now = due
	k.hears("ACK +0 msn=1")
}

// An owner that is about to block sends all pending ACKs. No timer is left then.
func TestReleaseAcks(t *testing.T) {
	for _, asked := range []bool{false, true} {
		k := newTalk(t, RC)
		if k.ReleaseAcks() {
			t.Error("an unexpected ACK is pending")
		}
		p := k.write(0, seq(8))
		p.noAck = !asked
		k.say(p)
		if !k.ReleaseAcks() || !k.HasTransmit(k.now) {
			t.Errorf("asked %v: the ACK is not sent", asked)
		}
		k.hears("ACK +0 msn=1")
		if d, ok := k.NextTimeout(); ok {
			t.Errorf("asked %v: a timer is set, at %v", asked, d)
		}
		if k.ReleaseAcks() || !k.Idle() {
			t.Errorf("asked %v: there is more to do", asked)
		}
	}
}

// IBA 9.7.5.2.2: a packet after the expected one shows a gap. One sequence NAK with the expected
// PSN reports it. Further packets are dropped until the expected one arrives.
func TestOneSequenceNAKPerGap(t *testing.T) {
	k := newTalk(t, RC)
	k.snapshot()
	k.say(k.write(2, seq(8)))
	k.hears("NAK PSN sequence error +0 msn=0")
	k.say(k.write(3, seq(8)), k.write(4, seq(8)), k.write(9, seq(8)))
	k.hears()
	k.unchanged()
	k.say(k.write(0, seq(8)))
	k.hears("ACK +0 msn=1")
	k.say(k.write(15, seq(8))) // the next gap is a new one
	k.hears("NAK PSN sequence error +1 msn=1")
	k.equal("sequence NAKs", k.Counters().SentSeqNAK, uint64(2))
	k.equal("packets out of sequence", k.Counters().OutOfSeqRequest, uint64(5))
}

// Beyond IBA 9.7.5.2.2: PSNs that go back within the gap show that the requester has started again
// and that the expected packet was lost again. A second NAK reports it, so the requester need not
// wait for its timer.
func TestSecondSequenceNAKAfterGoBack(t *testing.T) {
	k := newTalk(t, RC)
	k.say(k.write(1, seq(8)), k.write(2, seq(8)), k.write(3, seq(8)))
	k.hears("NAK PSN sequence error +0 msn=0")
	k.say(k.write(1, seq(8)), k.write(2, seq(8)), k.write(3, seq(8)))
	k.hears("NAK PSN sequence error +0 msn=0")
}

// IBA 9.7.4.1.2: half of the 2^24 PSNs, those before the expected one, are duplicates. The others
// are ahead.
func TestPSNHalves(t *testing.T) {
	for _, c := range []struct {
		psn  int
		want string
	}{
		{-1, "ACK -1 msn=0"},
		{-1000, "ACK -1 msn=0"},
		{-1 << 23, "ACK -1 msn=0"},
		{1, "NAK PSN sequence error +0 msn=0"},
		{1<<23 - 1, "NAK PSN sequence error +0 msn=0"},
	} {
		k := newTalk(t, RC)
		k.snapshot()
		k.say(k.write(c.psn, seq(8)))
		k.hears(c.want)
		k.unchanged()
	}
}

// IBA 9.7.5.1.3: a duplicate SEND or WRITE is not executed again, only acknowledged, with the PSN
// of the latest executed packet, with or without AckReq.
func TestDuplicatesAreOnlyAcknowledged(t *testing.T) {
	k := newTalk(t, RC)
	k.recvs(100, 100)
	k.say(k.write(0, seq(8)), send(1, seq(8)), k.write(2, seq(8)))
	k.hears("ACK +2 msn=3")
	k.completes("1 success RECV 8B")
	clear(k.mem[:8])
	k.snapshot()
	quiet := k.write(0, seq(8))
	quiet.noAck = true
	k.say(quiet)
	k.hears("ACK +2 msn=3")
	k.say(send(1, seq(8)))
	k.hears("ACK +2 msn=3")
	k.unchanged()
	k.completes()
	k.equal("duplicates", k.Counters().DuplicateRequest, uint64(2))
	k.say(send(3, seq(8))) // the second receive is still there
	k.hears("ACK +3 msn=4")
	k.completes("2 success RECV 8B")
}

// Only their responses acknowledge READs and atomics (IBA 9.7.5.1.1). No ACK has their PSN, because
// a requester whose response was lost would mistake it for one. The pending ACK of a WRITE before a
// READ is covered by the READ's response.
func TestNoACKForReadOrAtomic(t *testing.T) {
	k := newTalk(t, RC)
	k.say(k.write(0, seq(8)), k.read(1, 0, 600))
	k.hears("RDMA READ response First +1 msn=2 256B", "RDMA READ response Middle +2 256B",
		"RDMA READ response Last +3 msn=2 88B")
	k.hears()
	k.say(k.write(0, seq(8)))
	k.hears("ACK +0 msn=2")
	k.mr.Store64(64, 7)
	k.say(k.fetchAdd(4, 64, 1), k.write(0, seq(8)))
	k.hears("ATOMIC Acknowledge +4 msn=3 orig=7", "ACK +0 msn=3")
	k.say(k.write(5, seq(8)))
	k.hears("ACK +5 msn=4")
}

// A duplicate within a message does not affect the message in progress, even across the wrap.
func TestDuplicateWithinMessage(t *testing.T) {
	k := newTalk(t, RC)
	k.recvs(600)
	data := seq(520)
	first := pkt{op: bth.RCSendFirst, psn: 0, data: data[:256]}
	k.say(first, pkt{op: bth.RCSendMiddle, psn: 1, data: data[256:512]})
	k.hears("ACK +1 msn=0")
	k.say(first)
	k.hears("ACK +1 msn=0")
	k.say(pkt{op: bth.RCSendLast, psn: 2, data: data[512:]})
	k.hears("ACK +2 msn=1")
	k.completes("1 success RECV 520B")
	k.equal("received", string(k.mem[512<<10:][:520]), string(data))
}

// A gap within a message: received packets are kept, and the message continues with the lost
// packet.
func TestGapWithinMessage(t *testing.T) {
	k := newTalk(t, RC)
	data := seq(700)
	part := func(op bth.Opcode, psn, from, to int) pkt {
		return pkt{op: op, psn: psn, va: k.at(0), key: k.rkey(), n: 700, data: data[from:to]}
	}
	k.say(part(bth.RCWriteFirst, 0, 0, 256), part(bth.RCWriteLast, 2, 512, 700))
	k.hears("NAK PSN sequence error +1 msn=0")
	k.say(part(bth.RCWriteMiddle, 1, 256, 512), part(bth.RCWriteLast, 2, 512, 700))
	k.hears("ACK +2 msn=1")
	k.equal("written", string(k.mem[:700]), string(data))
}

// A sequence NAK acknowledges everything before its PSN (IBA 9.7.5.2.2): no separate ACK is sent.
func TestSequenceNAKReplacesACK(t *testing.T) {
	k := newTalk(t, RC)
	k.say(k.write(0, seq(8)), k.write(1, seq(8)), k.write(3, seq(8)))
	k.hears("NAK PSN sequence error +2 msn=2")
	k.hears()
}

// Packets for another QP, from another address or of another transport have no effect (IBA 9.6.1.1,
// RoCEv2 A17.4).
func TestUnknownSendersAreDropped(t *testing.T) {
	for _, c := range []struct {
		name string
		edit func(k *talk, p *pkt)
		n    func(c *Counters) uint64
	}{
		{"unknown QPN", func(k *talk, p *pkt) { p.dest = k.q.qpn + 1 },
			func(c *Counters) uint64 { return c.DropNoQP }},
		{"multicast QPN", func(_ *talk, p *pkt) { p.dest = bth.QPNMulticast },
			func(c *Counters) uint64 { return c.DropMulticast }},
		{"other source address", func(_ *talk, p *pkt) { p.from = bth.GID{15: 9} },
			func(c *Counters) uint64 { return c.DropAddress }},
		{"UC opcode", func(_ *talk, p *pkt) { p.op = bth.UCWriteOnly },
			func(c *Counters) uint64 { return c.DropType }},
		{"UD opcode", func(_ *talk, p *pkt) { p.op = bth.UDSendOnly },
			func(c *Counters) uint64 { return c.DropType }},
		{"other partition", func(_ *talk, p *pkt) { p.pkey = 0x8001 },
			func(c *Counters) uint64 { return c.DropPKey }},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := newTalk(t, RC)
			k.snapshot()
			p := k.write(0, seq(16))
			c.edit(k, &p)
			k.say(p)
			k.hears()
			k.unchanged()
			k.is(RTS)
			k.equal("drops", c.n(k.Counters()), uint64(1))
		})
	}
}

// IBA 10.9.3: partition keys match if their low 15 bits do and at least one of them is a full
// member's (high bit set).
func TestPKeyRules(t *testing.T) {
	for _, c := range []struct {
		own, theirs bth.PKey
		ok          bool
	}{
		{0xffff, 0xffff, true},
		{0xffff, 0x7fff, true},
		{0x7fff, 0xffff, true},
		{0x7fff, 0x7fff, false}, // two limited members must not communicate
		{0x8001, 0x8001, true},
		{0x8001, 0x0001, true},
		{0x8001, 0xffff, false},
		{0x8001, 0x8002, false},
		{0x0001, 0x0001, false},
	} {
		k := newTalk(t, RC)
		k.q.pkey = c.own
		p := k.write(0, seq(1))
		p.pkey = c.theirs
		k.say(p)
		if got := len(k.listen()) == 1; got != c.ok {
			t.Errorf("P_Key %#04x at a QP with %#04x: accepted %v, want %v", c.theirs, c.own, got,
				c.ok)
		}
	}
}

// A request that arrives before RTR or in ERR is dropped without an answer (IBA 10.3.1.2,
// 10.3.1.7).
func TestRequestsInOtherStates(t *testing.T) {
	for _, st := range []State{Reset, Init, Err} {
		k := newTalk(t, RC)
		if st == Err {
			must(t, k.q.Modify(k.now, &Attr{State: Err}, AttrState))
		} else {
			k.q.setState(st)
		}
		k.snapshot()
		k.say(k.write(0, seq(8)))
		k.hears()
		k.unchanged()
		k.equal("drops", k.Counters().DropNoQP, uint64(1))
	}
}

// IBA 11.6.3.1: the first packet in RTR raises COMM_EST, once.
func TestCommunicationEstablished(t *testing.T) {
	k := newTalk(t, RC)
	k.q.setState(RTR)
	for _, psn := range []int{-1000, -2, 256, 1 << 22} { // a sender that guesses the PSN
		k.say(k.write(psn, seq(1)))
	}
	k.raises()
	k.listen()
	k.say(k.write(0, seq(1)))
	k.hears("ACK +0 msn=1")
	k.raises("COMM_EST")
	k.say(k.write(1, seq(1)))
	k.hears("ACK +1 msn=2")
	k.raises()
}
