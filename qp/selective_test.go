package qp

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/gorxe/gorxe/bth"
)

// selAck returns an ACKNOWLEDGE with a SelACK: the packets that the peer holds, counted from base.
func (k *talk) selAck(psn int, s bth.Syndrome, duplicates uint16, held ...int) pkt {
	start := psn
	for _, at := range held {
		start = min(start, at)
	}
	var words []uint32
	for _, at := range held {
		for at-start >= 32*len(words) {
			words = append(words, 0)
		}
		words[(at-start)/32] |= 1 << (31 - (at-start)%32)
	}
	b := make([]byte, bth.MaxSelACKLen)
	n := bth.PutSelACK(b, k.base.Add(uint32(start)&psnMask), duplicates, words)
	return pkt{op: bth.RCAck, psn: psn, syndrome: s, data: b[:n]}
}

// missing returns the NAK of a gap at psn.
func (k *talk) missing(psn int, held ...int) pkt {
	return k.selAck(psn, bth.NAKSyndrome(bth.NAKPSNSequence), 0, held...)
}

// response returns a packet of a READ response.
func response(psn int, data []byte) pkt {
	return pkt{op: bth.RCReadResponseMiddle, psn: psn, data: data}
}

// writes posts n WRITEs of one packet.
func (k *talk) writes(n int) {
	k.t.Helper()
	for i := range n {
		k.post(k.wr(uint64(i), OpWrite, 8))
	}
	if got := len(k.listen()); got != n {
		k.t.Fatalf("%d packets, want %d", got, n)
	}
}

// done checks that the work requests from up to to have completed, in order and successfully.
func (k *talk) done(from, to int) {
	k.t.Helper()
	var want []string
	for i := from; i <= to; i++ {
		want = append(want, fmt.Sprintf("%d success RDMA_WRITE 8B", i))
	}
	k.completes(want...)
}

func (k *talk) check() {
	k.t.Helper()
	if err := k.q.invariants(); err != nil {
		k.t.Fatal(err)
	}
}

// Only the missing packet is retransmitted, when packets sent three transmissions later have
// arrived. Work requests complete only when an acknowledgment covers them.
func TestSelectiveRepairsOnlyTheGap(t *testing.T) {
	k := newSelectiveTalk(t)
	k.writes(9)
	k.say(k.missing(2, 3))
	k.hears()
	k.done(0, 1)
	k.say(k.missing(2, 3, 4))
	k.hears()
	k.say(k.missing(2, 3, 4, 5))
	k.hears("RDMA WRITE Only +2 dma=8 ask 8B")
	k.say(k.missing(2, 3, 4, 5, 6), k.missing(2, 3, 4, 5, 6, 7, 8))
	k.hears()
	k.completes()
	k.check()
	k.say(ack(8))
	k.done(2, 8)
	k.equal("retransmitted packets", k.Counters().Retransmits, uint64(1))
	k.equal("scoreboard open", k.q.win.repairing, false)
}

// If the last packet has arrived, nothing else can show the loss, so the gap is repaired at once.
func TestSelectiveRepairsTail(t *testing.T) {
	k := newSelectiveTalk(t)
	k.writes(4)
	k.say(k.missing(2, 3))
	k.hears("RDMA WRITE Only +2 dma=8 ask 8B")
	k.say(ack(3))
	k.done(0, 3)
}

// If everything after some packet is lost, a probe asks what the peer holds, and its answer shows
// all that is lost.
func TestSelectiveProbe(t *testing.T) {
	k := newSelectiveTalk(t)
	k.post(k.wr(100, OpWrite, 8))
	k.listen()
	k.now += 20_000
	k.say(ack(0)) // measures the round trip
	k.completes("100 success RDMA_WRITE 8B")
	for i := range 6 {
		k.post(k.wr(uint64(i), OpWrite, 8))
	}
	k.listen() // PSNs 1 to 6
	k.now += minRTO + 50_000
	k.hears("RDMA WRITE Only +1 dma=8 ask 8B")
	k.now += 20_000
	k.say(k.missing(2, 5))
	k.hears("RDMA WRITE Only +2 dma=8 8B", "RDMA WRITE Only +3 dma=8 8B",
		"RDMA WRITE Only +4 dma=8 8B", "RDMA WRITE Only +6 dma=8 ask 8B")
	k.say(ack(6))
	k.done(0, 5)
	k.equal("timeouts", k.Counters().AckTimeouts, uint64(0))
}

// A retransmitted packet that is lost again is found with later packets, not by a timeout.
func TestSelectiveRepairsAgain(t *testing.T) {
	k := newSelectiveTalk(t)
	k.writes(8)
	k.say(k.missing(0, 1, 2, 3))
	k.hears("RDMA WRITE Only +0 dma=8 ask 8B")
	for i := range 3 {
		k.post(k.wr(uint64(8+i), OpWrite, 8))
	}
	k.listen() // 8 to 10, sent after the retransmission
	k.say(k.missing(0, 1, 2, 3, 4, 5, 6, 7, 8, 9))
	k.hears()
	k.say(k.missing(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10))
	k.hears("RDMA WRITE Only +0 dma=8 ask 8B")
	k.say(ack(10))
	k.done(0, 10)
}

// Packets that are late instead of lost raise the tolerance: by their distance if they arrive
// before they are retransmitted, and by the duplicates that the peer counts.
func TestSelectiveToleratesReordering(t *testing.T) {
	k := newSelectiveTalk(t)
	k.writes(16)
	k.now += 50_000 // the round trip
	k.say(k.missing(0, 1, 2, 3))
	k.hears("RDMA WRITE Only +0 dma=8 ask 8B")
	k.say(k.selAck(7, bth.ACKNoLimit, 1))
	k.hears()
	k.equal("tolerance", k.q.tolerance, uint16(6))
	k.equal("spurious retransmissions", k.Counters().SpuriousRetransmits, uint64(1))
	k.say(k.missing(8, 9, 10, 11, 12, 13))
	k.hears()
	k.say(k.missing(8, 9, 10, 11, 12, 13, 14))
	k.hears("RDMA WRITE Only +8 dma=8 ask 8B")
	k.say(k.selAck(15, bth.ACKNoLimit, 9)) // more than were retransmitted
	k.equal("spurious retransmissions", k.Counters().SpuriousRetransmits, uint64(2))
	k.done(0, 15)
}

// The count of duplicates also comes with an ACK of packets that are acknowledged already.
func TestSelectiveCountsLateDuplicates(t *testing.T) {
	k := newSelectiveTalk(t)
	k.writes(4)
	k.now += 50_000 // the round trip
	k.say(k.missing(0, 1, 2, 3))
	k.hears("RDMA WRITE Only +0 dma=8 ask 8B")
	k.say(ack(3), k.selAck(3, bth.ACKNoLimit, 1))
	k.done(0, 3)
	k.equal("spurious retransmissions", k.Counters().SpuriousRetransmits, uint64(1))
}

// A probe whose packet was not lost counts as unnecessary, but is no reason to be more patient.
func TestSelectiveCountsUnnecessaryProbes(t *testing.T) {
	k := newSelectiveTalk(t)
	k.writes(2)
	for k.Counters().Probes == 0 {
		k.now += 1_000_000
		k.listen()
	}
	k.say(ack(1), k.selAck(1, bth.ACKNoLimit, 2)) // more than were retransmitted
	k.done(0, 1)
	c, s := k.Counters(), k.q.PathStats()
	k.equal("retransmissions", c.Retransmits, uint64(1))
	k.equal("spurious retransmissions", c.SpuriousRetransmits, uint64(1))
	k.equal("spurious retransmissions of the QP", s.Spurious, uint64(1))
	k.equal("tolerance", k.q.tolerance, uint16(minTolerance))
}

// The first report of held packets measures the round trip if the sampled packet is lost.
func TestSelectiveMeasuresRoundTripAfterLoss(t *testing.T) {
	k := newSelectiveTalk(t)
	k.post(k.wr(0, OpWrite, 8))
	k.listen()
	k.now += 100_000
	for i := range 3 {
		k.post(k.wr(uint64(1+i), OpWrite, 8))
	}
	k.listen()
	k.now += 100_000
	k.say(k.missing(0, 1))
	if got := k.q.rec.srtt; got < 100_000 || got > 300_000 {
		t.Errorf("round trip is %d ns, want about 200000", got)
	}
}

// A request that fails while responses to an earlier READ are missing fails after that READ, with
// the status of the NAK.
func TestSelectiveFailsAfterREAD(t *testing.T) {
	for name, c := range map[string]struct {
		syndrome bth.Syndrome
		want     string
	}{
		"NAK":     {bth.NAKSyndrome(bth.NAKRemoteAccess), "2 remote access error"},
		"RNR NAK": {bth.RNRSyndrome(1), "2 RNR retry counter exceeded"},
	} {
		k := newSelectiveTalk(t, func(_ *InitAttr, at *Attr) { at.RNRRetry = 0 })
		k.post(k.wr(1, OpRead, 2*talkMTU), k.wr(2, OpSend, 8), k.wr(3, OpSend, 8))
		k.listen()
		k.say(response(1, make([]byte, talkMTU)), pkt{op: bth.RCAck, psn: 2, syndrome: c.syndrome})
		k.completes()
		k.is(RTS)
		k.say(response(0, make([]byte, talkMTU)))
		k.completes("1 success RDMA_READ 512B", c.want, "3 Work Request Flushed Error")
		if k.q.Cause() == Success {
			t.Errorf("%s: Cause() = success", name)
		}
	}
}

// An RNR NAK says that its packet is not held any more. The others are not retransmitted.
func TestSelectiveRNRNAK(t *testing.T) {
	k := newSelectiveTalk(t)
	for i := range 4 {
		k.post(k.wr(uint64(i), OpSend, 8))
	}
	k.listen()
	k.say(k.missing(0, 1, 2, 3))
	k.hears("SEND Only +0 ask 8B")
	k.say(k.selAck(1, bth.RNRSyndrome(1), 0, 2, 3))
	k.completes("0 success SEND 8B")
	k.hears()
	k.now += Time(bth.RNRDelay(1)) + 1<<tickShift
	k.hears("SEND Only +1 ask 8B")
	k.say(ack(3))
	k.completes("1 success SEND 8B", "2 success SEND 8B", "3 success SEND 8B")
}

// An RNR NAK of a held packet is obeyed, too, while a READ before it waits for its response.
func TestSelectiveRNRNAKAfterRead(t *testing.T) {
	k := newSelectiveTalk(t)
	for i, op := range []Op{OpWrite, OpRead, OpSend, OpSend} {
		k.post(k.wr(uint64(i), op, 8))
	}
	k.listen()
	k.say(k.missing(0, 2, 3))
	k.hears("RDMA WRITE Only +0 dma=8 8B", "RDMA READ Request +1 dma=8 ask")
	k.say(k.selAck(2, bth.RNRSyndrome(1), 0, 3))
	k.completes("0 success RDMA_WRITE 8B")
	k.now += Time(bth.RNRDelay(1)) + 1<<tickShift
	k.hears("RDMA READ Request +1 dma=8 ask")
	k.say(pkt{op: bth.RCReadResponseOnly, psn: 1, syndrome: bth.ACKNoLimit, data: seq(8)})
	k.completes("1 success RDMA_READ 8B")
	k.hears("SEND Only +2 ask 8B")
}

// A NAK without held packets comes from a peer without memory: everything is retransmitted.
func TestSelectivePlainNAK(t *testing.T) {
	k := newSelectiveTalk(t)
	k.writes(3)
	k.say(nak(1, bth.NAKPSNSequence))
	k.done(0, 0)
	k.hears("RDMA WRITE Only +1 dma=8 8B", "RDMA WRITE Only +2 dma=8 ask 8B")
	k.say(ack(2))
	k.done(1, 2)
}

// READ responses after a gap go to memory at once. Only the missing ones are requested again, by
// requests that start within the READ.
func TestSelectiveREAD(t *testing.T) {
	k := newSelectiveTalk(t)
	const n = 8 * talkMTU
	want := seq(n)
	part := func(i int) []byte { return want[i*talkMTU : (i+1)*talkMTU] }
	k.post(k.wr(1, OpRead, n))
	k.hears("RDMA READ Request +0 dma=2048 ask")
	k.say(response(0, part(0)), response(3, part(3)))
	k.hears()
	k.equal("data after the gap", string(k.mem[3*talkMTU:4*talkMTU]), string(part(3)))
	k.say(response(4, part(4)), response(5, part(5)))
	k.hears("RDMA READ Request +1 dma=512 ask")
	for _, i := range []int{6, 7, 1} {
		k.say(response(i, part(i)))
	}
	k.completes()
	k.check()
	k.say(response(2, part(2)))
	k.completes("1 success RDMA_READ 2048B")
	k.equal("data", string(k.mem[:n]), string(want))
}

// The request of an atomic is repeated as it was. Later responses wait for it.
func TestSelectiveAtomic(t *testing.T) {
	k := newSelectiveTalk(t)
	for i := range 4 {
		wr := k.wr(uint64(i), OpFetchAdd, 8)
		wr.SGEs = []SGE{k.sge(8*i, 8)}
		k.post(wr)
	}
	k.listen()
	for i := 1; i < 4; i++ {
		k.say(pkt{op: bth.RCAtomicAck, psn: i, orig: uint64(10 + i)})
	}
	k.completes()
	k.hears("FetchAdd +0 ask")
	k.say(pkt{op: bth.RCAtomicAck, psn: 0, orig: 10})
	k.completes("0 success FETCH_ADD 8B", "1 success FETCH_ADD 8B", "2 success FETCH_ADD 8B",
		"3 success FETCH_ADD 8B")
	k.equal("first result", k.mem[0], byte(10))
	k.equal("last result", k.mem[24], byte(13))
}

// READs into the same memory leave the data of the last one, in whatever order responses arrive.
// Responses to a READ that overlaps an incomplete one partly are dropped.
func TestSelectiveREADsShareMemory(t *testing.T) {
	k := newSelectiveTalk(t)
	const n = 2 * talkMTU
	k.post(k.wr(1, OpRead, n), k.wr(2, OpRead, n), k.wr(3, OpRead, n))
	k.listen()
	for _, psn := range []int{4, 5, 2, 3, 0, 1} {
		k.say(response(psn, bytes.Repeat([]byte{"ABC"[psn/2]}, talkMTU)))
	}
	k.completes("1 success RDMA_READ 512B", "2 success RDMA_READ 512B", "3 success RDMA_READ 512B")
	k.equal("memory", string(k.mem[:n]), strings.Repeat("C", n))

	partly := k.wr(5, OpRead, 8)
	partly.SGEs = []SGE{k.sge(4, 8)}
	k.post(k.wr(4, OpRead, 8), partly)
	k.listen()
	k.say(response(7, []byte("EEEEEEEE")), response(6, []byte("DDDDDDDD")))
	k.completes("4 success RDMA_READ 8B")
	k.say(response(7, []byte("EEEEEEEE")))
	k.completes("5 success RDMA_READ 8B")
	k.equal("memory", string(k.mem[:12]), "DDDDEEEEEEEE")
}

// A READ whose memory has gone fails when it is the oldest work request.
func TestSelectiveREADFails(t *testing.T) {
	k := newSelectiveTalk(t)
	first := k.wr(1, OpRead, 2*talkMTU)
	first.SGEs = []SGE{k.sge(1000, 2*talkMTU)}
	k.post(first, k.wr(2, OpRead, 8), k.wr(3, OpRead, 8))
	k.listen()
	k.say(response(1, seq(talkMTU)), response(2, []byte("too long for this READ")))
	k.completes()
	k.say(response(0, seq(talkMTU)))
	k.completes("1 success RDMA_READ 512B", "2 bad response error", "3 Work Request Flushed Error")
}

// A duplicate of part of a READ is answered on its own, before the rest of the answer in progress,
// and does not set that back.
func TestSelectiveAnswersPartOfREAD(t *testing.T) {
	k := newSelectiveTalk(t)
	k.say(k.read(0, 0, 4*talkMTU))
	var buf [8192]byte
	for range 3 {
		k.PollTransmit(k.now, buf[:])
	}
	k.say(k.read(1, talkMTU, talkMTU), k.read(2, 2*talkMTU, 2*talkMTU))
	k.hears("RDMA READ response Only +1 msn=1 256B", "RDMA READ response Only +2 msn=1 256B",
		"RDMA READ response Last +3 msn=1 256B")
}

// A peer that sends false SelACKs gets no completion without an acknowledgment, and the data
// structures stay consistent and small.
func TestHostileSelACKs(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 5))
		k := newSelectiveTalk(t, func(ia *InitAttr, at *Attr) { ia.SQDepth, at.Timeout = 256, 0 })
		acked, posted, next := -1, 0, 0 // highest acknowledged and sent PSN, next ID to complete
		for range 400 {
			for ; r.IntN(4) > 0 && k.q.SQLen() < 250; posted++ {
				k.post(k.wr(uint64(posted), OpWrite, 8))
			}
			k.listen()
			sent := int(bth.PSN(k.q.max&psnMask).Sub(k.base)) - 1
			var held []int
			for range r.IntN(30) {
				held = append(held, acked+r.IntN(400)-20)
			}
			held = append(held, acked)
			psn := acked + 1 + r.IntN(8)
			p := k.missing(psn, held...)
			switch r.IntN(8) {
			case 0:
				p.syndrome = bth.ACKNoLimit
			case 1:
				p.data[3] = byte(r.Uint32())
			case 2:
				p.data = p.data[:r.IntN(len(p.data)+1)]
			case 3:
				p.syndrome = bth.RNRSyndrome(uint8(r.IntN(32)))
			}
			if psn <= sent {
				acked = psn - 1
				if p.syndrome == bth.ACKNoLimit {
					acked++
				}
			}
			k.say(p)
			k.now += Time(r.IntN(50_000))
			if k.q.State() == Err {
				break // too many RNR NAKs or NAKs without progress
			}
			k.check()
			k.collect()
			for _, wc := range k.wcs {
				if wc.Status != Success || wc.ID != uint64(next) || next > acked {
					t.Fatalf("seed %d: completion %s with PSNs up to %d acknowledged", seed,
						wc.short(), acked)
				}
				next++
			}
			k.wcs = nil
		}
	}
}

// Repairs do not allocate in the steady state.
func TestSelectiveRepairAllocatesNothing(t *testing.T) {
	c := newCable(t, RC, 256)
	for i, q := range []*QP{c.a, c.b} {
		must(t, q.Modify(c.now, &Attr{State: Reset}, AttrState))
		at := connectAttr()
		at.PathMTU, at.Selective = 256, true
		c.connect(q, at, i, []*QP{c.b, c.a}[i].QPN())
	}
	a, b := c.ends[0], c.ends[1]
	va, key := b.remote(0)
	wrs := []SendWR{{Op: OpWrite, SGEs: []SGE{a.sge(0, 9000)}, RemoteAddr: va, RKey: key},
		{Op: OpRead, SGEs: []SGE{a.sge(16384, 9000)}, RemoteAddr: va, RKey: key},
		{Op: OpFetchAdd, SGEs: []SGE{a.sge(32768, 8)}, RemoteAddr: va, RKey: key, SwapAdd: 1},
		{Op: OpWrite, Flags: Signaled, SGEs: []SGE{a.sge(0, 2000)}, RemoteAddr: va, RKey: key}}
	i := 0
	run := func() {
		if n, err := c.a.PostSend(wrs); n != len(wrs) {
			t.Fatal(err)
		}
		for j := 0; c.a.SQLen() > 0; j++ {
			if c.now += 5000; j > 1_000_000 {
				t.Fatal("the queue does not become empty")
			}
			for side, e := range c.ends {
				e.HandleTimeout(c.now)
				c.drain(side, func(to *end) {
					if i++; i%11 != 0 { // the others are lost
						to.HandlePacket(c.now, &c.pkt)
					}
				})
			}
		}
		a.cq.Poll(c.wcs[:])
	}
	for range 50 {
		run()
	}
	if n := testing.AllocsPerRun(50, run); n != 0 {
		t.Errorf("%v allocations per run, want 0", n)
	}
	if k := c.ends[0].Counters(); k.Retransmits == 0 || k.RcvdSeqNAK == 0 {
		t.Errorf("nothing was repaired: %+v", k)
	}
}
