package engine

import (
	"math/rand/v2"
	"testing"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/fuzz/packets"
	"github.com/gorxe/gorxe/mr"
	"github.com/gorxe/gorxe/qp"
)

// asker is a QP with posted work, and what it has sent of it.
type asker struct {
	*bench
	r    *rand.Rand
	tape *tape
	q    *qp.QP
	gen  *packets.Generator
	dec  frame.Decoder
	mr   *mr.MR

	posted   []qp.SendWR // not yet completed, oldest first
	end0     uint32      // packets of everything completed in this life
	first    bth.PSN     // of this life
	sent     uint32      // packets of this life that were sent or requested
	requests []request   // seen on the wire
	nextID   uint64
	broken   bool
	syndrome bth.Syndrome // of help
	batch    bool         // a packet of this step was handled
	classes  []*packets.Class
}

// request is a packet that the QP sent.
type request struct {
	op  bth.Operation
	psn bth.PSN
	dma uint32
}

func newAsker(t testing.TB, tp *tape) *asker {
	a := &asker{bench: newBench(t), tape: tp, r: rand.New(tp), syndrome: bth.ACKNoLimit}
	a.mr = a.register(a.pd, 4096, 16384, mr.LocalWrite)
	var err error
	a.q, err = a.eng.CreateQP(qp.InitAttr{Type: qp.RC, PD: a.pd, SendCQ: a.cq, RecvCQ: a.cq,
		SQDepth: 16, RQDepth: 1, MaxSendSGE: 3, MaxInline: 100, QPN: 0x100})
	must(t, err)
	a.gen = packets.NewSource(tp, packets.Target{
		Address: frame.Address{Src: there, Dst: here}, Transport: bth.RC, QPN: 0x100, MTU: mtu,
		Responses: true, Sound: 0.7,
		Addr: a.mr.Addr(), RKey: bth.RKey(a.mr.LKey()), Len: 4096,
	})
	a.classes = classes("false selective acknowledgment", "CNPs and ECN marks",
		"ACK outside the window", "READ response of wrong length")
	a.raise()
	return a
}

func (a *asker) raise() {
	attr := connAttr(there, 0x700)
	attr.MaxRdAtomic = uint8(a.r.IntN(5))
	attr.Timeout = uint8(a.r.IntN(20))
	attr.RetryCnt, attr.RNRRetry = uint8(a.r.IntN(8)), uint8(a.r.IntN(8))
	attr.SQPSN = bth.PSN(0xfffff0 + a.r.IntN(16))
	a.first, a.sent, a.end0 = attr.SQPSN, 0, 0
	attr.Access = 0
	attr.Selective = a.r.IntN(3) > 0
	raise(a.t, a.eng, a.now, a.q, attr, qp.RTS)
	a.requests, a.broken = nil, false
}

func (a *asker) step() {
	switch a.r.IntN(13) {
	case 0, 1:
		a.post()
	case 7:
		a.aim()
		a.gen.Make(a.classes[a.r.IntN(len(a.classes))], func(f []byte) {
			a.deliver(f, a.gen.What())
		})
	case 8:
		a.holds()
	case 2, 3, 4, 9:
		a.help()
	case 5:
		a.pass(qp.Time(a.r.Int64N(1 << a.r.IntN(32))))
	case 6:
		if a.broken || a.r.IntN(8) == 0 {
			a.restart()
		}
	default:
		a.aim()
		a.deliver(a.gen.Frame(), a.gen.What())
	}
	a.eng.HandleEnd(a.now)
	a.batch = false
	a.transmit(a.r.IntN(40))
	a.completions()
	a.check("after a step")
}

// aim makes the next packets answer one of the latest requests.
func (a *asker) aim() {
	if n := len(a.requests); n > 0 && a.r.IntN(4) > 0 {
		a.gen.SetPSN(a.requests[n-1-a.r.IntN(n)].psn)
	}
}

// holds claims that some of the packets after a request have arrived.
func (a *asker) holds() {
	if len(a.requests) == 0 {
		return
	}
	q := a.requests[max(0, len(a.requests)-1-a.r.IntN(32))]
	words := make([]uint32, a.r.IntN(3))
	for i := range words {
		words[i] = a.r.Uint32()
	}
	b := make([]byte, bth.MaxAckLen)
	bth.PutBTH(b, &bth.BTHFields{Opcode: bth.RCAck, PKey: bth.DefaultPKey, DestQP: 0x100,
		PSN: q.psn})
	bth.PutAETH(b[bth.HeaderLen:], bth.NAKSyndrome(bth.NAKPSNSequence), 0)
	const at = bth.HeaderLen + bth.AETHLen
	n := bth.PutSelACK(b[at:], q.psn, uint16(a.r.IntN(4)), words)
	var p bth.Packet
	must(a.t, p.Parse(b[:at+n]))
	p.Src, p.Dst = there, here
	a.eng.HandlePacket(a.now, &p)
	a.check("a selective acknowledgment")
}

// post posts a valid work request.
func (a *asker) post() {
	a.nextID++
	wr := qp.SendWR{ID: a.nextID, Op: qp.Op(a.r.IntN(int(qp.OpAtomicWrite) + 1)),
		Flags: qp.SendFlags(a.r.IntN(8)), RemoteAddr: a.r.Uint64() &^ 7}
	n := a.r.IntN(3000)
	if a.r.IntN(2) == 0 {
		n = a.r.IntN(3 * mtu)
	}
	switch wr.Op {
	case qp.OpCmpSwap, qp.OpFetchAdd, qp.OpAtomicWrite:
		n = 8
	case qp.OpFlush:
		wr.Placement, wr.Level, wr.Length = qp.PlaceGlobal, qp.Level(a.r.IntN(2)), a.r.Uint32()>>1
	}
	off := a.r.IntN(a.mr.Len() - n)
	for _, p := range a.posted {
		for _, s := range a.spans(p.SGEs) {
			if lands(p.Op) && s.off < a.at(off)+n && a.at(off) < s.off+s.n {
				return
			}
		}
	}
	if wr.Op != qp.OpFlush {
		cut := a.r.IntN(n + 1)
		wr.SGEs = []qp.SGE{sge(a.mr, off, cut), {}, sge(a.mr, off+cut, n-cut)}
	}
	if k, _ := a.q.PostSend([]qp.SendWR{wr}); k == 0 {
		return
	}
	a.posted = append(a.posted, wr)
	if lands(wr.Op) {
		a.grants[wr.ID] = a.spans(wr.SGEs)
	}
	a.eng.HandleDoorbells(a.now)
}

// at returns where an offset of the region is in the arena.
func (a *asker) at(off int) int { return 4096 + off }

// lands reports whether an operation returns data.
func lands(o qp.Op) bool { return o == qp.OpRead || o == qp.OpCmpSwap || o == qp.OpFetchAdd }

// transmit takes up to n packets, all of which must be requests of this QP.
func (a *asker) transmit(n int) {
	var p bth.Packet
	for range n {
		if !a.next(&p) {
			return
		}
		if !p.Info.Request && p.Info.Op != bth.OpAck && p.Info.Op != bth.OpCNP || p.BTH.DestQP() != 0x700 {
			a.t.Fatalf("%v to QP %#x", p.BTH.Opcode(), uint32(p.BTH.DestQP()))
		}
		if p.Info.Request {
			q := request{p.Info.Op, p.BTH.PSN(), p.RETH().DMALen()}
			a.requests = append(a.requests, q)
			n := uint32(1)
			if q.op == bth.OpReadRequest {
				n = packetsOf(q.dma)
			}
			a.sent = max(a.sent, uint32(q.psn.Sub(a.first))+n)
		}
	}
}

// packetsOf returns the number of packets for n bytes.
func packetsOf(n uint32) uint32 { return max(1, (n+mtu-1)/mtu) }

// help gives a correct answer to one of the latest requests.
func (a *asker) help() {
	if len(a.requests) == 0 {
		return
	}
	q := a.requests[max(0, len(a.requests)-1-a.r.IntN(8))]
	if a.r.IntN(12) == 0 {
		a.syndrome = []bth.Syndrome{bth.NAKSyndrome(bth.NAKCode(a.r.IntN(5))),
			bth.RNRSyndrome(uint8(a.r.IntN(32)))}[a.r.IntN(2)]
		a.answer(bth.RCAck, q.psn, 0)
		a.syndrome = bth.ACKNoLimit
		return
	}
	switch q.op {
	case bth.OpReadRequest:
		npkts := int(packetsOf(q.dma))
		from := a.r.IntN(npkts)
		if a.r.IntN(3) > 0 {
			from = 0
		}
		for i := from; i < npkts; i++ {
			o := bth.RequestOpcode(bth.RC, bth.OpReadResponse, i == 0, i == npkts-1, false, false)
			a.answer(o, q.psn.Add(uint32(i)), min(mtu, int(q.dma)-i*mtu))
		}
	case bth.OpFlush, bth.OpAtomicWrite:
		a.answer(bth.RCReadResponseOnly, q.psn, 0)
	case bth.OpCmpSwap, bth.OpFetchAdd:
		a.answer(bth.RCAtomicAck, q.psn, 0)
	default:
		a.answer(bth.RCAck, q.psn, 0)
	}
}

// answer delivers a response packet.
func (a *asker) answer(o bth.Opcode, psn bth.PSN, n int) {
	i := o.Info()
	b := make([]byte, int(i.HeaderLen)+n+(-n&3))
	bth.PutBTH(b, &bth.BTHFields{Opcode: o, PKey: bth.DefaultPKey, DestQP: 0x100, PSN: psn,
		PadCount: uint8(-n & 3)})
	if i.AETH != 0 {
		bth.PutAETH(b[i.AETH:], a.syndrome, 0)
	}
	var p bth.Packet
	must(a.t, p.Parse(b))
	p.Src, p.Dst = there, here
	a.handle(&p)
	a.check(i.Name)
}

// handle passes a packet to the engine. The packets of a step are a batch.
func (a *asker) handle(p *bth.Packet) {
	if !a.batch || !a.eng.HandleNext(a.now, p) {
		a.eng.HandlePacket(a.now, p)
	}
	a.batch = true
}

func (a *asker) deliver(f []byte, what string) {
	var p bth.Packet
	if a.dec.Decode(f, &p) != frame.ReasonOK {
		return
	}
	a.handle(&p)
	a.check(what)
}

// completions checks that work completes in order, each once, and that nothing succeeds after a
// failure.
func (a *asker) completions() {
	for _, wc := range a.poll() {
		for len(a.posted) > 0 && a.posted[0].ID != wc.ID {
			if a.posted[0].Flags&qp.Signaled != 0 || a.broken {
				a.t.Fatalf("completion %+v, but %d is older", wc, a.posted[0].ID)
			}
			a.succeed()
		}
		if len(a.posted) == 0 {
			a.t.Fatalf("completion %+v of work that is not posted", wc)
		}
		switch {
		case a.broken && wc.Status != qp.WRFlushErr:
			a.t.Fatalf("completion %+v behind one that failed", wc)
		case wc.Status == qp.Success && a.posted[0].Flags&qp.Signaled == 0:
			a.t.Fatalf("completion %+v of an unsignaled request", wc)
		case wc.Status != qp.Success:
			a.broken = true
		}
		if wc.Status == qp.Success {
			a.succeed()
		} else {
			a.retire()
		}
	}
	if a.q.State() == qp.Err && a.q.SQLen() > 0 && len(a.posted) > 0 && !a.eng.DoorbellPending() {
		a.t.Fatalf("QP in ERR with %d work requests left", a.q.SQLen())
	}
}

// succeed checks that nothing succeeds that was not sent.
func (a *asker) succeed() {
	wr, n := &a.posted[0], uint32(0)
	for _, g := range wr.SGEs {
		n += g.Length
	}
	a.end0 += packetsOf(n)
	if a.end0 > a.sent {
		a.t.Fatalf("%v %d succeeds, which ends with packet %d; %d were sent", wr.Op, wr.ID, a.end0,
			a.sent)
	}
	a.retire()
}

func (a *asker) retire() {
	a.check("before a completion")
	delete(a.grants, a.posted[0].ID)
	a.posted = a.posted[1:]
}

// restart flushes and starts a new life.
func (a *asker) restart() {
	a.end()
	must(a.t, a.q.Modify(a.now, &qp.Attr{State: qp.Reset}, qp.AttrState))
	a.raise()
}

// end checks that everything that is left completes once.
func (a *asker) end() {
	a.completions()
	must(a.t, a.q.Modify(a.now, &qp.Attr{State: qp.Err}, qp.AttrState))
	a.completions()
	for len(a.posted) > 0 {
		if a.posted[0].Flags&qp.Signaled != 0 || a.broken {
			a.t.Fatalf("work request %d has not completed", a.posted[0].ID)
		}
		a.succeed()
	}
	if n := a.q.SQLen(); n != 0 {
		a.t.Fatalf("%d work requests are left", n)
	}
}

func FuzzRequester(f *testing.F) {
	seedTapes(f)
	f.Fuzz(func(t *testing.T, b []byte) { playRequester(t, b) })
}

func playRequester(t testing.TB, b []byte) *qp.Counters {
	tp := newTape(b)
	a := newAsker(t, tp)
	for i := 0; i < maxSteps && !tp.ended(); i++ {
		a.step()
	}
	a.end()
	a.check("at the end")
	return a.eng.Counters()
}

// TestRequesterSoak plays random tapes as TestResponderSoak does.
func TestRequesterSoak(t *testing.T) {
	soak(t, playRequester, "Completions", "CompletionErrors", "Flushed", "RcvdRNR", "RcvdSeqNAK",
		"RcvdErrNAK", "ImpliedNAK", "AckTimeouts",
		"Probes", "Retransmits", "RetryExceeded", "RNRRetryExceeded", "DropGhost",
		"RcvdCNPs", "SentCNPs")
}

// TestHelpedRequester checks that with correct answers everything succeeds, so the fuzz target sees
// more than failures.
func TestHelpedRequester(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	b := make([]byte, 20000)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	a := newAsker(t, newTape(b))
	a.restart()
	done := 0
	for range 2000 {
		before := len(a.posted)
		a.post()
		if len(a.posted) > before && a.q.Query().MaxRdAtomic == 0 {
			a.restart()
			continue
		}
		a.transmit(1000)
		for range 20 {
			a.help()
			a.pass(10_000) // also for pacing
			a.transmit(1000)
		}
		before = len(a.posted)
		a.completions()
		done += before - len(a.posted)
		if a.broken {
			a.restart()
		}
	}
	if done < 500 {
		t.Errorf("only %d work requests completed", done)
	}
	t.Logf("%d work requests completed", done)
}
