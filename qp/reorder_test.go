package qp

import (
	"testing"

	"github.com/gorxe/gorxe/bth"
)

// newSelectiveTalk creates an RC QP with selective repeat.
func newSelectiveTalk(t testing.TB, change ...func(*InitAttr, *Attr)) *talk {
	t.Helper()
	return newTalk(t, RC, append(change, func(_ *InitAttr, at *Attr) { at.Selective = true })...)
}

// writeTo returns a WRITE ONLY to offset off.
func (k *talk) writeTo(psn, off int, data []byte) pkt {
	p := k.write(psn, data)
	p.va = k.at(off)
	return p
}

// Packets after a gap are reported as held, and executed in order when the gap is filled. The PSNs
// cross the wrap.
func TestSelectiveHoldsPackets(t *testing.T) {
	k := newSelectiveTalk(t)
	k.say(k.writeTo(1, 8, seq(8)), k.writeTo(2, 16, seq(8)), k.writeTo(4, 24, seq(8)))
	k.hears("NAK PSN sequence error +0 msn=0 held +1..+2 +4")
	k.equal("memory before the gap is filled", k.mem[8], byte(0))
	k.say(k.writeTo(0, 0, seq(8)))
	k.hears("NAK PSN sequence error +3 msn=3 held +4")
	k.equal("memory after the gap is filled", string(k.mem[8:24]), string(append(seq(8), seq(8)...)))
	k.equal("memory after the second gap", k.mem[24], byte(0))
	k.say(k.writeTo(3, 40, seq(8)))
	k.hears("ACK +4 msn=5")
	k.equal("memory at the end", string(k.mem[24:32]), string(seq(8)))
	c := k.Counters()
	k.equal("HeldPkts", c.HeldPkts, uint64(3))
	k.equal("ParkedBytes", c.ParkedBytes, uint64(0))
	k.equal("ReorderDrops", c.ReorderDrops, uint64(0))
}

// Without selective repeat, packets after a gap are dropped and no acknowledgment has a payload.
func TestGoBackNHoldsNothing(t *testing.T) {
	k := newTalk(t, RC)
	k.say(k.writeTo(1, 8, seq(8)), k.writeTo(2, 16, seq(8)))
	k.hears("NAK PSN sequence error +0 msn=0")
	k.say(k.writeTo(0, 0, seq(8)), k.writeTo(0, 0, seq(8)))
	k.hears("ACK +0 msn=1")
	k.equal("HeldPkts", k.Counters().HeldPkts, uint64(0))
}

// Completions and results of atomics are in order, and atomics are executed once.
func TestSelectiveExecutesInOrder(t *testing.T) {
	k := newSelectiveTalk(t)
	k.recvs(8, 8, 8)
	imm := k.write(3, seq(8))
	imm.op, imm.imm = bth.RCWriteOnlyImm, 7
	k.say(k.fetchAdd(2, 64, 5), imm, send(1, seq(8)), k.fetchAdd(2, 64, 5), k.read(4, 64, 8),
		k.fetchAdd(5, 64, 5))
	k.hears("NAK PSN sequence error +0 msn=0 held +1..+5 dup=1")
	k.completes()
	k.say(send(0, seq(4)))
	k.completes("1 success RECV 4B", "2 success RECV 8B", "3 success RECV_RDMA_WITH_IMM 8B imm=7")
	k.hears("ATOMIC Acknowledge +2 msn=3 orig=0", "RDMA READ response Only +4 msn=5 8B",
		"ATOMIC Acknowledge +5 msn=6 orig=5")
	k.equal("the word", k.mem[64], byte(10))
	k.say(k.fetchAdd(2, 64, 5))
	k.hears("ATOMIC Acknowledge +2 msn=3 orig=0")
	k.equal("the word after a duplicate", k.mem[64], byte(10))
}

// A READ uses the PSNs of its responses. Its bit is that of the request.
func TestSelectiveHoldsREAD(t *testing.T) {
	k := newSelectiveTalk(t)
	k.say(k.read(1, 0, 3*talkMTU), k.writeTo(4, 0, seq(8)))
	k.hears("NAK PSN sequence error +0 msn=0 held +1 +4")
	k.say(k.writeTo(0, 8, seq(8)))
	k.hears("RDMA READ response First +1 msn=2 256B", "RDMA READ response Middle +2 256B",
		"RDMA READ response Last +3 msn=2 256B", "ACK +4 msn=3")
}

// An RNR NAK forgets the packet that it names and keeps the later ones.
func TestSelectiveRNR(t *testing.T) {
	k := newSelectiveTalk(t)
	k.say(send(1, seq(8)), send(2, seq(4)))
	k.hears("NAK PSN sequence error +0 msn=0 held +1..+2")
	k.say(k.write(0, seq(8)))
	k.hears("RNR NAK timer 12 +1 msn=1 held +2")
	k.say(k.writeTo(4, 0, seq(8)))
	k.hears("ACK +0 msn=1 held +2 +4") // no sequence error: the requester waits
	k.recvs(8, 8)
	k.say(send(1, seq(8)))
	k.hears("NAK PSN sequence error +3 msn=3 held +4")
	k.completes("1 success RECV 8B", "2 success RECV 4B")
	k.say(k.writeTo(3, 0, seq(8)))
	k.hears("ACK +4 msn=5")
}

// Duplicates are counted and reported once. Keepalives and READs do not count.
func TestSelectiveCountsDuplicates(t *testing.T) {
	k := newSelectiveTalk(t)
	k.say(k.write(0, seq(8)))
	k.hears("ACK +0 msn=1")
	k.say(k.write(0, seq(8)))
	k.hears("ACK +0 msn=1 held dup=1")
	k.say(k.write(0, nil), k.write(1, seq(8)))
	k.hears("ACK +1 msn=2")
	k.say(k.write(3, seq(8)), k.write(3, seq(8)), k.write(1, seq(8)))
	k.hears("NAK PSN sequence error +2 msn=2 held +3 dup=3")
}

// A reset or destroyed QP, and one in ERR, returns its memory.
func TestSelectiveReturnsMemory(t *testing.T) {
	for name, end := range map[string]func(k *talk){
		"reset":     func(k *talk) { must(t, k.q.Modify(k.now, &Attr{State: Reset}, AttrState)) },
		"destroyed": func(k *talk) { k.DestroyQP(k.q) },
		"error":     func(k *talk) { must(t, k.q.Modify(k.now, &Attr{State: Err}, AttrState)) },
		"refused": func(k *talk) {
			p := k.write(0, seq(8))
			p.key++
			k.say(p)
			k.hears("NAK remote access error +0 msn=0")
		},
	} {
		k := newSelectiveTalk(t)
		k.say(k.write(1, seq(8)), k.write(3, seq(talkMTU)))
		if k.Counters().ParkedBytes == 0 {
			t.Errorf("%s: ParkedBytes = 0 with held packets", name)
		}
		if end(k); k.Counters().ParkedBytes != 0 {
			t.Errorf("%s: ParkedBytes = %d, want 0", name, k.Counters().ParkedBytes)
		}
	}
}
