package qp

import (
	"fmt"
	"testing"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/mr"
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
	k.hears("NAK PSN sequence error +1 msn=1 held +2 +4")
	k.recvs(8, 8)
	k.say(send(1, seq(8)))
	k.hears("NAK PSN sequence error +3 msn=3 held +4")
	k.completes("1 success RECV 8B", "2 success RECV 4B")
	k.say(k.writeTo(3, 0, seq(8)))
	k.hears("ACK +4 msn=5")
	k.say(send(5, seq(8)))
	k.hears("RNR NAK timer 12 +5 msn=5")
	k.say(k.write(0, nil)) // a keepalive: nothing is held, so there is no sequence error
	k.hears("ACK +4 msn=5 held")
}

// An RNR NAK for the last held packet ends when that packet is executed: the next gap causes a NAK
// for a sequence error, even if the packet after it cannot be held.
func TestSelectiveRNRForLastHeld(t *testing.T) {
	k := newSelectiveTalk(t)
	k.say(send(1, seq(8)))
	k.hears("NAK PSN sequence error +0 msn=0 held +1")
	k.say(k.write(0, seq(8)))
	k.hears("RNR NAK timer 12 +1 msn=1")
	k.recvs(8)
	k.say(send(1, seq(8)))
	k.hears("ACK +1 msn=2")
	k.completes("1 success RECV 8B")
	k.say(k.writeTo(2+reorderSpan, 0, seq(8)))
	k.hears("NAK PSN sequence error +2 msn=2")
}

// If a gap is filled before the NAK for a packet that could not be held is sent, the NAK names the
// first packet that is missing then.
func TestSelectiveNAKAfterFill(t *testing.T) {
	k := newSelectiveTalk(t)
	k.say(k.write(1, seq(8)), k.writeTo(reorderSpan, 0, seq(8)), k.write(0, seq(8)))
	k.hears("NAK PSN sequence error +2 msn=2")
}

// A held request that finds the queue of answers full waits for a slot.
func TestSelectiveWaitsForAnswers(t *testing.T) {
	k := newSelectiveTalk(t)
	const n = 20
	var want []string
	for i := range n {
		k.say(pkt{op: bth.RCFlush, psn: 1 + i, va: k.at(0), key: k.rkey(), n: 8,
			placement: PlaceGlobal})
		want = append(want, fmt.Sprintf("RDMA READ response Only %+d msn=%d", 1+i, 2+i))
	}
	k.say(k.writeTo(0, 0, seq(8)), k.writeTo(n+1, 0, seq(8)))
	k.say(pkt{op: bth.RCFlush, psn: 9, va: k.at(0), key: k.rkey(), n: 8, placement: PlaceGlobal})
	k.hears(append(want, fmt.Sprintf("ACK %+d msn=%d", n+1, n+2))...)
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

// writeParts returns the packets of a WRITE of data to offset off.
func (k *talk) writeParts(psn, off int, data []byte) []pkt {
	var ps []pkt
	for at := 0; at < len(data); at += talkMTU {
		end := min(at+talkMTU, len(data))
		ps = append(ps, pkt{op: bth.RequestOpcode(bth.RC, bth.OpWrite, at == 0, end == len(data), false,
			false), psn: psn + len(ps), va: k.at(off), key: k.rkey(), n: uint32(len(data)),
			data: data[at:end]})
	}
	return ps
}

// written reports whether the memory at offset off contains data.
func (k *talk) written(off int, data []byte) bool {
	return string(k.mem[off:off+len(data)]) == string(data)
}

// placed checks the number of packets that went to memory out of order.
func (k *talk) placed(want uint64) {
	k.t.Helper()
	if n := k.Counters().PlacedPkts; n != want {
		k.t.Fatalf("PlacedPkts = %d, want %d", n, want)
	}
}

// FIRST and MIDDLE packets of WRITEs go to memory at once, also those of later messages. LAST
// packets are parked, so a flag at the end is never visible before the data: rule 2 of mr's memory
// model.
func TestSelectivePlacesWRITEs(t *testing.T) {
	k := newSelectiveTalk(t)
	data, next := seq(5*talkMTU), seq(3*talkMTU+9)
	ps := append(k.writeParts(0, 0, data), k.writeParts(5, 8192, next)...)
	k.say(ps[0], ps[2], ps[3], ps[4], ps[5], ps[6], ps[7], ps[8])
	k.hears("NAK PSN sequence error +1 msn=0 held +2..+8")
	k.placed(5) // not the two LAST packets
	for _, p := range []struct {
		at      int
		written bool
	}{{0, true}, {256, false}, {512, true}, {768, true}, {1024, false}, {8192, true}, {8448, true},
		{8704, true}, {8960, false}} {
		want := data[min(p.at, 1024):]
		if p.at >= 8192 {
			want = next[p.at-8192:]
		}
		if got := k.written(p.at, want[:min(len(want), talkMTU)]); got != p.written {
			t.Errorf("packet at offset %d: in memory = %v, want %v", p.at, got, p.written)
		}
	}
	k.say(ps[1])
	k.hears("ACK +8 msn=2")
	k.equal("first message", k.written(0, data), true)
	k.equal("second message", k.written(8192, next), true)
}

// A packet whose FIRST is missing is parked, because its address is not known, and so are all
// packets after it, because it is not known where the missing one writes.
func TestSelectiveParksAfterUnknownAddress(t *testing.T) {
	k := newSelectiveTalk(t)
	a, b := k.writeParts(0, 0, seq(3*talkMTU)), k.writeParts(3, 8192, seq(3*talkMTU))
	k.say(a[1], b[0], b[1])
	k.hears("NAK PSN sequence error +0 msn=0 held +1 +3..+4")
	k.placed(0)
	k.say(a[0], a[2])
	k.say(b[2])
	k.hears("ACK +5 msn=2")
	k.equal("first message", k.written(0, seq(3*talkMTU)), true)
	k.equal("second message", k.written(8192, seq(3*talkMTU)), true)
}

// A parked SEND or FLUSH does not keep later WRITEs from being placed.
func TestSelectivePlacesAfterSENDs(t *testing.T) {
	k := newSelectiveTalk(t)
	k.recvs(8)
	a, b := k.writeParts(0, 0, seq(3*talkMTU)), k.writeParts(5, 8192, seq(3*talkMTU))
	k.say(a[0], a[2], send(3, seq(8)), pkt{op: bth.RCFlush, psn: 4, va: k.at(0), key: k.rkey(), n: 8,
		placement: PlaceGlobal}, b[0])
	k.hears("NAK PSN sequence error +1 msn=0 held +2..+5")
	k.placed(1)
	k.say(a[1])
	k.completes("1 success RECV 8B")
}

// After a request that will be refused, or that may invalidate a key, nothing is placed.
func TestSelectivePlacesNothingAfterRefusal(t *testing.T) {
	for name, refused := range map[string]func(k *talk) pkt{
		"WRITE": func(k *talk) pkt { p := k.write(3, seq(8)); p.key++; return p },
		"READ":  func(k *talk) pkt { p := k.read(3, 0, 8); p.key++; return p },
		"atomic": func(k *talk) pkt {
			p := k.fetchAdd(3, 0, 1)
			p.va = k.at(len(k.mem))
			return p
		},
		"SEND with invalidate": func(k *talk) pkt {
			return pkt{op: bth.RCSendOnlyInv, psn: 3, inv: k.rkey(), data: seq(8)}
		},
	} {
		k := newSelectiveTalk(t)
		k.recvs(8)
		a, b := k.writeParts(0, 0, seq(3*talkMTU)), k.writeParts(4, 8192, seq(3*talkMTU))
		k.say(a[0], a[2], refused(k), b[0], b[1])
		if n := k.Counters().PlacedPkts; n != 0 {
			t.Errorf("after a refused %s: PlacedPkts = %d, want 0", name, n)
		}
		k.say(a[1])
		k.equal("memory after "+name, k.mem[8192], byte(0))
	}
}

// Overlapping WRITEs leave the memory as in order: only packets that write to the bytes of an
// earlier packet that is missing or parked must wait.
func TestSelectiveOverlappingWRITEs(t *testing.T) {
	k := newSelectiveTalk(t)
	first, second := seq(4*talkMTU), make([]byte, 4*talkMTU)
	for i := range second {
		second[i] = byte(i*3 + 5)
	}
	a, b := k.writeParts(0, 0, first), k.writeParts(4, 0, second)
	k.say(a[0], a[2], a[3], b[0], b[1], b[2], b[3]) // a[1] is missing, a[3] and b[3] are parked
	k.hears("NAK PSN sequence error +1 msn=0 held +2..+7")
	k.placed(3) // a[2], b[0], b[2]
	k.equal("b[0] in memory", k.written(0, second[:talkMTU]), true)
	k.equal("b[2] in memory", k.written(512, second[512:768]), true)
	k.say(a[1])
	k.hears("ACK +7 msn=2")
	k.equal("the second message", k.written(0, second), true)
}

// Atomics and WRITEs of one packet are executed in order, so a WRITE that overlaps one that is
// parked is parked too.
func TestSelectiveOverlappingAtomics(t *testing.T) {
	k := newSelectiveTalk(t)
	data := seq(3 * talkMTU)
	ps := k.writeParts(0, 4096, data)
	w := k.writeParts(4, 0, data)
	k.say(ps[0], ps[2], k.fetchAdd(3, 264, 1), w[0], w[1], w[2])
	k.hears("NAK PSN sequence error +1 msn=0 held +2..+6")
	k.placed(1) // w[0]; w[1] overlaps the atomic
	k.say(ps[1])
	k.hears("ATOMIC Acknowledge +3 msn=2 orig=0", "ACK +6 msn=3")
	k.equal("the message", k.written(0, data), true)
}

// MIDDLE packets of the SEND in progress are scattered at once. After two missing packets it is not
// certain that a packet belongs to that SEND.
func TestSelectivePlacesSENDs(t *testing.T) {
	k := newSelectiveTalk(t)
	data := seq(7 * talkMTU)
	k.recvs(len(data), 64)
	parts := func(psn int, data []byte) []pkt {
		ps := k.writeParts(psn, 0, data)
		for i := range ps {
			ps[i].op = bth.RequestOpcode(bth.RC, bth.OpSend, i == 0, i == len(ps)-1, false, false)
		}
		return ps
	}
	ps := parts(0, data)
	k.say(ps[0], ps[2], ps[4])
	k.hears("NAK PSN sequence error +1 msn=0 held +2 +4")
	k.placed(2)
	k.say(ps[6], send(7, seq(8)))
	k.hears("NAK PSN sequence error +1 msn=0 held +2 +4 +6..+7")
	k.placed(2)
	k.equal("packet 2 in memory", k.written(512<<10+512, data[512:768]), true)
	k.completes()
	k.say(ps[3], ps[5])
	k.placed(4)
	k.say(ps[1])
	k.completes("1 success RECV 1792B", "2 success RECV 8B")
	k.equal("the receive", k.written(512<<10, data), true)

	k = newSelectiveTalk(t)
	k.recvs(len(data))
	k.say(ps[0], ps[3]) // 1 and 2 may be a LAST and a FIRST
	k.placed(0)
	k.say(ps[2], ps[4])
	k.placed(2) // packet 3 stays parked
	k.say(ps[1], ps[5], ps[6])
	k.completes("1 success RECV 1792B")
	k.equal("the receive", k.written(512<<10, data), true)
}

// A key that is invalidated after a gap is refused when its next packet is executed. What was
// placed before stays, and nothing more is placed.
func TestSelectiveKeyRevoked(t *testing.T) {
	k := newSelectiveTalk(t)
	m, mem := k.region(k.pd, 8*talkMTU, allAccess|mr.LocalWrite)
	ps := k.writeParts(0, 0, seq(5*talkMTU))
	for i := range ps {
		ps[i].va, ps[i].key = m.Addr(), bth.RKey(m.RKey())
	}
	k.say(ps[0], ps[2])
	k.placed(1)
	must(t, k.mrs.Deregister(m))
	k.say(ps[3])
	k.placed(1)
	k.hears("NAK PSN sequence error +1 msn=0 held +2..+3")
	k.say(ps[1])
	k.hears("NAK remote access error +1 msn=0")
	k.is(Err)
	k.raises("QP_ACCESS_ERR")
	k.equal("packet 2", string(mem[512:768]), string(ps[2].data))
	k.equal("packet 3", string(mem[768:1024]), string(make([]byte, talkMTU)))
	k.equal("ParkedBytes", k.Counters().ParkedBytes, uint64(0))
}

// Held SENDs take receives of an SRQ when they are executed, not when they arrive.
func TestSelectiveSRQ(t *testing.T) {
	w := newWorld(t, 1)
	k := &talk{world: w, end: w.ends[1]}
	srq, err := k.NewSRQ(k.pd, SRQConfig{Depth: 4})
	must(t, err)
	k.renew(RC, func(ia *InitAttr, at *Attr) { ia.SRQ, at.Selective = srq, true })
	for i := range 3 {
		_, err := srq.PostRecv([]RecvWR{{ID: uint64(i + 1), SGEs: []SGE{k.sge(i*1024, 1024)}}})
		must(t, err)
	}
	k.say(send(1, seq(8)), send(2, seq(8)))
	k.equal("receives", srq.Len(), 3)
	k.say(send(0, seq(4)), send(3, seq(8)))
	k.completes("1 success RECV 4B", "2 success RECV 8B", "3 success RECV 8B")
	k.hears("RNR NAK timer 12 +3 msn=3")
}
