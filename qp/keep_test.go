package qp

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/gorxe/gorxe/bth"
)

// readResp returns the response to READ packet psn of n packets in all, of which it is number i.
func readResp(psn, i, n int, data []byte) pkt {
	p := pkt{op: bth.RCReadResponseMiddle, psn: psn, syndrome: bth.ACKNoLimit, data: data}
	switch {
	case n == 1:
		p.op = bth.RCReadResponseOnly
	case i == 0:
		p.op = bth.RCReadResponseFirst
	case i == n-1:
		p.op = bth.RCReadResponseLast
	}
	return p
}

// Without selective repeat too, READ responses that arrive after a gap are kept. The rest of the
// part with the gap is requested again, and nothing else. READs complete in order.
func TestKeepReadResponses(t *testing.T) {
	k := newTalk(t, RC)
	data := seq(8 * talkMTU)
	second := k.wr(2, OpRead, talkMTU)
	second.SGEs = []SGE{k.sge(8*talkMTU, talkMTU)}
	k.post(k.wr(1, OpRead, 8*talkMTU), second, k.wr(3, OpWrite, 8))
	k.listen()
	say := func(i int) { k.say(readResp(i, i, 8, data[i*talkMTU:][:talkMTU])) }
	for _, i := range []int{0, 1, 3, 4} {
		say(i)
	}
	k.hears() // the response may be late
	say(5)
	k.hears("RDMA READ Request +2 dma=1536 ask")
	say(6)
	say(7)
	k.say(readResp(8, 0, 1, seq(talkMTU)), ack(9))
	k.completes()
	k.hears()
	say(2)
	k.completes("1 success RDMA_READ 2048B", "2 success RDMA_READ 256B", "3 success RDMA_WRITE 8B")
	for i := 3; i < 8; i++ { // the peer answers the whole request
		say(i)
	}
	k.completes()
	k.equal("scoreboard", k.q.win.repairing, false)
	k.equal("data", string(k.mem[:8*talkMTU]), string(data))
	k.equal("data of the second READ", string(k.mem[8*talkMTU:][:talkMTU]), string(seq(talkMTU)))
}

// The answers of a retransmitted READ request may all arrive twice. They count as at most as many
// unnecessary retransmissions as there were packets.
func TestSelectiveCountsDuplicateResponses(t *testing.T) {
	k := newSelectiveTalk(t)
	data := seq(8 * talkMTU)
	k.post(k.wr(1, OpRead, 8*talkMTU))
	k.listen()
	say := func(list ...int) {
		for _, i := range list {
			k.say(readResp(i, i, 8, data[i*talkMTU:][:talkMTU]))
		}
	}
	say(0, 5, 6)
	k.now += 50_000
	for k.Counters().Retransmits == 0 && k.now < 10_000_000 {
		say(6)
		k.now += 10_000
		k.listen()
	}
	say(1, 2, 3, 4, 1, 2, 3, 4, 7, 1, 2, 3, 4)
	k.completes("1 success RDMA_READ 2048B")
	c, s := k.Counters(), k.q.PathStats()
	k.equal("retransmissions", c.Retransmits, uint64(1))
	k.equal("spurious retransmissions", c.SpuriousRetransmits, uint64(1))
	k.equal("spurious retransmissions of the QP", s.Spurious, uint64(1))
}

// READs after a READ of one packet see memory that is at least as new. So their responses are
// dropped while its response is missing, and requested again after it.
func TestReadsInOrder(t *testing.T) {
	for _, selective := range []bool{false, true} {
		k := newTalk(t, RC, func(_ *InitAttr, at *Attr) { at.Selective = selective })
		for i, n := range []int{8, 2 * talkMTU, 8} { // PSNs 0, 1 and 2, 3
			wr := k.wr(uint64(i), OpRead, n)
			wr.SGEs = []SGE{k.sge(1000*i, n)}
			k.post(wr)
		}
		k.listen()
		old, now := make([]byte, talkMTU), seq(talkMTU)
		k.now += 10_000
		k.q.rec.srtt, k.q.rec.rttvar = 10_000, 1000
		k.say(readResp(1, 0, 2, old))
		k.hears("RDMA READ Request +0 dma=8 ask", "RDMA READ Request +1 dma=512 ask",
			"RDMA READ Request +3 dma=8 ask")
		k.say(readResp(2, 1, 2, old), readResp(3, 0, 1, old[:8])) // sent before the repair
		k.hears()
		k.say(readResp(0, 0, 1, now[:8]), readResp(1, 0, 2, now), readResp(2, 1, 2, now))
		k.completes("0 success RDMA_READ 8B", "1 success RDMA_READ 512B")
		k.say(readResp(3, 0, 1, now[:8]))
		k.completes("2 success RDMA_READ 8B")
		k.equal("second READ", string(k.mem[1000:][:2*talkMTU]), string(now)+string(now))
		k.equal("third READ", string(k.mem[2000:][:8]), string(now[:8]))
	}
}

// A response that arrives before that of a READ of one packet may have overtaken it.
func TestReadsInOrderWhenLate(t *testing.T) {
	k := newTalk(t, RC)
	k.q.model()
	k.q.tolerance = 8
	for i := range 3 {
		wr := k.wr(uint64(i), OpRead, 8)
		wr.SGEs = []SGE{k.sge(1000*i, 8)}
		k.post(wr)
	}
	k.listen()
	k.now += 10_000
	k.say(readResp(1, 0, 1, make([]byte, 8)))
	k.hears("RDMA READ Request +1 dma=8 ask")
	k.say(readResp(0, 0, 1, seq(8)), readResp(2, 0, 1, seq(8)))
	k.completes("0 success RDMA_READ 8B")
	k.hears("RDMA READ Request +2 dma=8 ask")
	k.say(readResp(1, 0, 1, seq(8)), readResp(2, 0, 1, seq(8)))
	k.completes("1 success RDMA_READ 8B", "2 success RDMA_READ 8B")
	k.equal("data", string(k.mem[1000:1008]), string(seq(8)))
}

// A sequence NAK asks for one request and everything after it. The responses to the requests before
// it are on their way.
func TestKeepReadsBeforeNAK(t *testing.T) {
	k := newTalk(t, RC)
	k.post(k.wr(1, OpRead, 2*talkMTU), k.wr(2, OpWrite, 8), k.wr(3, OpRead, 8))
	k.listen()
	k.now += 10_000
	k.say(readResp(1, 1, 2, seq(talkMTU)), nak(2, bth.NAKPSNSequence))
	k.hears("RDMA WRITE Only +2 dma=8 8B", "RDMA READ Request +3 dma=8 ask")
	k.say(nak(2, bth.NAKPSNSequence), nak(3, bth.NAKPSNSequence)) // sent before the repair
	k.hears()
	k.say(readResp(0, 0, 2, seq(talkMTU)))
	k.completes("1 success RDMA_READ 512B", "2 success RDMA_WRITE 8B")
	k.say(readResp(3, 0, 1, seq(8)))
	k.completes("3 success RDMA_READ 8B")
}

// A fatal NAK fails its work request after the READ before it is complete.
func TestFatalNAKAfterGap(t *testing.T) {
	k := newTalk(t, RC)
	k.post(k.wr(1, OpRead, 2*talkMTU), k.wr(2, OpWrite, 8), k.wr(3, OpWrite, 8))
	k.listen()
	k.say(readResp(1, 1, 2, seq(talkMTU)), nak(2, bth.NAKRemoteAccess))
	k.completes()
	k.listen()
	k.say(readResp(0, 0, 2, seq(talkMTU)))
	k.completes("1 success RDMA_READ 512B", "2 remote access error",
		"3 Work Request Flushed Error")
}

// After a timeout a large part is requested in pieces, and each piece when the one before it has
// arrived.
func TestReadPieces(t *testing.T) {
	k := newTalk(t, RC)
	k.post(k.wr(1, OpRead, 8*talkMTU))
	k.listen()
	k.now += initialRTO + second/100
	k.hears("RDMA READ Request +0 dma=512 ask")
	k.say(readResp(1, 1, 2, seq(talkMTU)))
	k.listen()
	k.say(readResp(0, 0, 2, seq(talkMTU)))
	k.hears("RDMA READ Request +2 dma=1536 ask")
	for i := 2; i < 8; i++ {
		k.say(readResp(i, i-2, 6, seq(talkMTU)))
	}
	k.completes("1 success RDMA_READ 2048B")
}

// A READ never sees older memory than a READ of one packet before it, whatever is lost.
func TestReadsSeeMemoryInOrder(t *testing.T) {
	for seed := range uint64(40) {
		w := newWorld(t, seed)
		r := rand.New(rand.NewPCG(seed, 97))
		w.faults.loss = 0.2 * r.Float64()
		a, _ := w.pair(RC, func(_ *InitAttr, at *Attr) {
			at.PathMTU, at.Timeout, at.Selective = 256, 12, seed%2 == 0
		})
		const words, ops = 96, 100
		clock := byte(0) // advances while packets arrive
		arrived := 0
		w.arrive = func(to int, _ *bth.Packet) bool {
			if arrived++; to == 1 && arrived%16 == 0 && clock < 255 {
				clock++
			}
			for i := range words {
				w.ends[1].mem[8*i] = clock
			}
			return true
		}
		va, key := w.ends[1].remote(0)
		for i := range ops {
			n := 8
			if r.IntN(3) == 0 {
				n = 8 * words
			}
			w.post(a, SendWR{ID: uint64(i), Flags: Signaled, Op: OpRead, RemoteAddr: va, RKey: key,
				SGEs: []SGE{w.ends[0].sge(1000*i, n)}})
		}
		e := w.ends[0]
		w.run(600*second, func() bool { return len(e.wcs) == ops })
		last := byte(0)
		for i, wc := range e.wcs {
			for at := range int(wc.ByteLen) / 8 {
				if got := e.mem[1000*i+8*at]; got < last {
					t.Fatalf("seed %d: word %d of READ %d is %d, want at least %d", seed, at, i, got,
						last)
				}
			}
			if wc.ByteLen == 8 {
				last = e.mem[1000*i]
			}
		}
		if last == 0 {
			t.Fatalf("seed %d: memory did not change", seed)
		}
	}
}

// The ACK of a retransmitted packet is no RTT sample for the packets after it, which the peer has
// held for some time.
func TestSampleBehindGap(t *testing.T) {
	k := newSelectiveTalk(t)
	k.writes(2)
	sent := k.now
	k.now += initialRTO + 1<<tickShift // 0 is lost, 1 arrives, and the report about that is lost
	k.hears("RDMA WRITE Only +0 dma=8 ask 8B")
	k.now += 10_000
	k.say(ack(1))
	k.done(0, 1)
	if r := &k.q.rec; !r.unmeasured() || r.srtt < k.now-sent {
		t.Errorf("RTT %d ns, variation %d, want only an upper bound of at least %d", r.srtt, r.rttvar,
			k.now-sent)
	}
}

// strictReads drops READ requests that the kernel's rxe drops: it remembers the last requests, and
// of each only the start of the last duplicate.
type strictReads struct {
	list    []readPSNs
	pending readPSNs
	dropped []string
}

// readPSNs are the PSNs of a READ request that the responder knows.
type readPSNs struct{ first, start, end uint64 }

// accepts reports whether QP q handles packet p.
func (s *strictReads) accepts(q *QP, p *bth.Packet) bool {
	if s.pending.end != 0 && q.epsn >= s.pending.end {
		s.list = append(s.list, s.pending)
		s.list = s.list[max(0, len(s.list)-int(q.attr.MaxDestRdAtomic)):]
	}
	s.pending = readPSNs{}
	psn := extend(q.epsn, p.BTH.PSN())
	if p.Info.Op != bth.OpReadRequest {
		if (p.Info.Op == bth.OpFetchAdd || p.Info.Op == bth.OpCmpSwap) && psn == q.epsn {
			s.pending = readPSNs{psn, psn, psn + 1}
		}
		return true
	}
	mtu := q.mtu.Load()
	end := psn + uint64(max(1, (p.RETH().DMALen()+mtu-1)/mtu))
	if psn >= q.epsn {
		if psn == q.epsn {
			s.pending = readPSNs{psn, psn, end}
		}
		return true
	}
	for i := range s.list {
		r := &s.list[i]
		if psn >= r.first && psn < r.end {
			if psn >= r.start && end <= r.end {
				r.start = psn
				return true
			}
			s.dropped = append(s.dropped, fmt.Sprintf("[%d, %d) of [%d, %d)", psn, end, r.start, r.end))
			return false
		}
	}
	s.dropped = append(s.dropped, fmt.Sprintf("[%d, %d), which is forgotten", psn, end))
	return false
}

// A responder may remember only the last READ requests, and may reject a duplicate that starts
// before an earlier one or ends after it. All requests of a QP without selective repeat obey that,
// whatever is lost.
func TestStrictResponder(t *testing.T) {
	n := 200
	if testing.Short() {
		n = 40
	}
	for seed := range n {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { strictResponder(t, uint64(seed)) })
	}
}

func strictResponder(t *testing.T, seed uint64) {
	w := newWorld(t, seed)
	r := rand.New(rand.NewPCG(seed, 98))
	w.faults.loss = 0.2 * r.Float64() * r.Float64()
	a, b := w.pair(RC, func(_ *InitAttr, at *Attr) {
		at.PathMTU, at.Timeout = 256, 12
		at.MaxRdAtomic, at.MaxDestRdAtomic = 4, 4
	})
	var s strictReads
	w.arrive = func(to int, p *bth.Packet) bool { return to == 0 || s.accepts(b, p) }
	const size = 64 << 10
	w.ends[1].fill(0, size, 1)
	var sum, reads int
	const ops = 60
	for i := range ops {
		n := 1 + r.IntN(12_000)
		wr := SendWR{ID: uint64(i), Flags: Signaled, Op: OpRead, SGEs: []SGE{w.ends[0].sge(i*12_000, n)}}
		wr.RemoteAddr, wr.RKey = w.ends[1].remote(0)
		switch r.IntN(6) {
		case 0:
			wr.Op = OpWrite
			wr.RemoteAddr += size
		case 1:
			wr.Op, wr.SwapAdd = OpFetchAdd, 1
			wr.RemoteAddr += 512 << 10
			wr.SGEs[0].Length = 8
			sum++
		default:
			reads++
		}
		w.post(a, wr)
	}
	e := w.ends[0]
	w.run(600*second, func() bool { return len(e.wcs) == ops })
	for i, wc := range e.wcs {
		if wc.Status != Success || wc.ID != uint64(i) {
			t.Fatalf("completion %s, want %d", wc.short(), i)
		}
		if wc.Opcode == WCRead && !bytes.Equal(e.mem[i*12_000:][:wc.ByteLen],
			w.ends[1].mem[:wc.ByteLen]) {
			t.Errorf("READ %d of %d bytes returned wrong data", i, wc.ByteLen)
		}
	}
	if got := w.ends[1].mem[512<<10]; int(got) != sum || reads == 0 {
		t.Errorf("counter is %d after %d additions", got, sum)
	}
	for _, d := range s.dropped {
		t.Errorf("request for %s", d)
	}
}
