package engine

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/fuzz/packets"
	"github.com/gorxe/gorxe/mr"
	"github.com/gorxe/gorxe/qp"
)

const (
	maxSteps = 400
	// maxAnswers bounds the packets that one request may cause: a READ of the largest region, and
	// an ACK or NAK.
	maxAnswers = 2*4096/mtu + 2
)

// victim is a QP that receives the fuzzed packets.
type victim struct {
	q    *qp.QP
	attr qp.Attr
	gen  *packets.Generator
	srq  bool
}

// stage is an engine with victims, and a bystander QP that must not be affected.
type stage struct {
	*bench
	r       *rand.Rand
	tape    *tape
	victims []*victim
	classes []*packets.Class
	srq     *qp.SRQ
	rw, wo  *mr.MR
	inv     *mr.MR
	recv    *mr.MR
	named   map[bth.QPN][]named // by QPs, in this life
	nextID  uint64
	dec     frame.Decoder
	budget  int // answers that may still come

	calm  *qp.QP // the bystander
	calmA *mr.MR
}

func newStage(t testing.TB, tp *tape) *stage {
	s := &stage{bench: newBench(t), tape: tp, r: rand.New(tp), named: map[bth.QPN][]named{},
		classes: classes("packets after a gap", "CNPs and ECN marks", "message out of order")}
	const all = mr.LocalWrite | mr.RemoteWrite | mr.RemoteRead | mr.RemoteAtomic
	s.rw = s.register(s.pd, 4096, 4096, all)
	s.wo = s.register(s.pd, 12288, 1000, mr.LocalWrite|mr.RemoteWrite)
	s.inv = s.register(s.pd, 14336, 512, mr.LocalWrite|mr.RemoteWrite|mr.RemoteInvalidate)
	ro := s.register(s.pd, 10000, 2000, mr.RemoteRead)
	foreign := s.register(s.pd2, 16384, 1024, mr.LocalWrite|mr.RemoteWrite)
	s.regions = s.regions[:len(s.regions)-1] // of another protection domain
	dead := s.register(s.pd, 18000, 1000, mr.RemoteRead)
	must(t, s.mrs.Deregister(dead))
	s.recv = s.register(s.pd, 20480, 8192, mr.LocalWrite)
	s.calmA = s.register(s.pd, 30000, 1024, mr.LocalWrite)
	var others []packets.Region
	for _, m := range []*mr.MR{s.wo, s.inv, ro, foreign, dead} {
		others = append(others,
			packets.Region{Addr: m.Addr(), RKey: bth.RKey(m.RKey()), Len: uint32(m.Len())})
	}
	for _, m := range []*mr.MR{s.rw, s.recv} {
		others = append(others,
			packets.Region{Addr: m.Addr(), RKey: bth.RKey(m.LKey()), Len: uint32(m.Len())})
	}

	var err error
	s.srq, err = s.eng.NewSRQ(s.pd, qp.SRQConfig{Depth: 4, MaxSGE: 3})
	must(t, err)
	for i, v := range []struct {
		typ   qp.Type
		srq   bool
		state qp.State
		sel   bool // selective repeat
	}{
		{qp.RC, false, qp.RTS, false}, {qp.RC, true, qp.RTS, false}, {qp.RC, true, qp.RTS, true},
		{qp.RC, false, qp.RTR, false}, {qp.RC, false, qp.Init, true}, {qp.RC, false, qp.RTS, true},
		{qp.UC, false, qp.RTS, false}, {qp.UC, true, qp.RTS, false}, {qp.UD, false, qp.RTS, false},
		{qp.UD, true, qp.RTR, false},
	} {
		vi := &victim{srq: v.srq, attr: connAttr(there, bth.QPN(0x700+i))}
		ia := qp.InitAttr{Type: v.typ, PD: s.pd, SendCQ: s.cq, RecvCQ: s.cq, SQDepth: 4, RQDepth: 4,
			MaxRecvSGE: 3, QPN: bth.QPN(0x100 + 2*i)}
		if v.srq {
			ia.SRQ = s.srq
			vi.attr.MaxDestRdAtomic = 1
		}
		vi.attr.Selective = v.sel
		vi.q, err = s.eng.CreateQP(ia)
		must(t, err)
		raise(t, s.eng, s.now, vi.q, vi.attr, v.state)
		vi.gen = packets.NewSource(tp, packets.Target{
			Address:   frame.Address{Src: there, Dst: here, SrcPort: 0xc002},
			Transport: bth.Transport(v.typ) + bth.RC, QPN: vi.q.QPN(), PSN: vi.attr.RQPSN,
			QKey: qkey, SrcQPN: 0x700, MTU: mtu,
			Addr: s.rw.Addr(), RKey: bth.RKey(s.rw.RKey()), Len: 4096, Others: others, Sound: 0.6,
		})
		s.victims = append(s.victims, vi)
	}
	s.calm, err = s.eng.CreateQP(qp.InitAttr{Type: qp.RC, PD: s.pd, SendCQ: s.cq, RecvCQ: s.cq,
		SQDepth: 4, RQDepth: 4, QPN: 0x900})
	must(t, err)
	raise(t, s.eng, s.now, s.calm, connAttr(witness, 0x901), qp.RTS)
	return s
}

// step performs one step of the tape.
func (s *stage) step() {
	v := s.victims[s.r.IntN(len(s.victims))]
	if v.q.State() == qp.Err && s.r.IntN(3) > 0 {
		s.revive(v, qp.RTS)
	}
	switch k := s.r.IntN(23); k {
	case 20, 21, 22:
		v.gen.Make(s.classes[s.r.IntN(len(s.classes))], func(f []byte) {
			s.receive(f, v.gen.What())
		})
	case 12:
		s.receive(s.raw(), "raw bytes")
	case 13, 14:
		for range 1 + s.r.IntN(4) {
			s.postRecv(v)
		}
	case 15:
		s.grantHeld()
		s.pass(qp.Time(s.r.Int64N(1 << s.r.IntN(24))))
	case 16:
		s.modify(v)
	case 17:
		s.reregister(v)
	case 18:
		s.drainSRQ()
	case 19:
		must(s.t, s.srq.SetLimit(s.r.IntN(5)))
	default:
		for i := range 1 + s.r.IntN(8)/4*s.r.IntN(8) { // a batch of up to 8
			s.handle(v.gen.Frame(), v.gen.What(), i > 0)
		}
		s.eng.HandleEnd(s.now)
	}
	if s.r.IntN(4) > 0 {
		s.grantHeld()
		s.answers(s.r.IntN(64))
	}
	s.completions()
	s.check("after a step")
	for _, ok := s.eng.PollEvent(); ok; _, ok = s.eng.PollEvent() {
	}
}

// raw makes a frame from bytes of the tape, with a correct ICRC.
func (s *stage) raw() []byte {
	var hdr [bth.MaxNetHeader]byte
	n := frame.PutHeaders(hdr[:], &frame.Address{Src: there, Dst: here, HopLimit: 1})
	body := s.tape.take(bth.HeaderLen + s.r.IntN(64))
	f := append(append(hdr[:n:n], body...),
		make([]byte, max(0, bth.HeaderLen-len(body))+bth.ICRCLen)...)
	new(frame.Encoder).Finish(f, n)
	return f
}

func (s *stage) receive(f []byte, what string) {
	s.handle(f, what, false)
	s.eng.HandleEnd(s.now)
}

// handle passes a frame to the engine. next says that nothing else was called since the frame
// before it.
func (s *stage) handle(f []byte, what string, next bool) {
	var p bth.Packet
	if s.dec.Decode(f, &p) != frame.ReasonOK || p.Dst != here {
		return
	}
	before := bytes.Clone(f)
	s.grant(&p)
	if !next || !s.eng.HandleNext(s.now, &p) {
		s.eng.HandlePacket(s.now, &p)
	}
	s.budget += maxAnswers
	if !bytes.Equal(f, before) {
		s.t.Fatalf("the engine changed the packet: %s", what)
	}
	s.check(what)
}

// grant lets a packet change what it names, and the ranges named to its QP before, since it may
// continue a WRITE.
func (s *stage) grant(p *bth.Packet) {
	q := p.BTH.DestQP()
	r := p.RETH()
	if p.Info.AtomicETH != 0 {
		s.named[q] = append(s.named[q], named{p.AtomicETH().VA(), 8})
	} else if p.Info.RETH != 0 && p.Info.Op != bth.OpReadRequest {
		s.named[q] = append(s.named[q], named{r.VA(), uint64(r.DMALen())})
	}
	s.granted = s.granted[:0]
	s.grantNamed(q)
}

// grantHeld lets everything change that was named to QPs with selective repeat. They may execute
// held packets when they send, and when time passes.
func (s *stage) grantHeld() {
	for _, v := range s.victims {
		if v.attr.Selective {
			s.grantNamed(v.q.QPN())
		}
	}
}

func (s *stage) grantNamed(q bth.QPN) {
	for _, n := range s.named[q] {
		for _, g := range s.regions {
			from := max(n.va, 0x10000+uint64(g.off))
			to := min(n.va+n.n, 0x10000+uint64(g.off+g.n))
			if n.va+n.n >= n.va && from < to {
				s.granted = append(s.granted, span{int(from - 0x10000), int(to - from)})
			}
		}
	}
}

// named is a range of addresses in a packet.
type named struct{ va, n uint64 }

// answers polls up to n packets and checks them. Their PSNs correct the generators.
func (s *stage) answers(n int) {
	var p bth.Packet
	for range n {
		if !s.next(&p) {
			return
		}
		if s.budget--; s.budget < 0 {
			s.t.Fatal("more answers than requested")
		}
		if bytes.Contains(p.Payload, []byte(secret)) {
			s.t.Fatalf("%v carries memory that no peer may read", p.BTH.Opcode())
		}
		var to *victim
		for _, v := range s.victims {
			if p.BTH.DestQP() == v.attr.DestQPN && v.q.Type() == qp.RC {
				to = v
			}
		}
		if to == nil || !p.Info.Response && p.Info.Op != bth.OpCNP {
			s.t.Fatalf("%v to QP %#x, which sent no request", p.BTH.Opcode(),
				uint32(p.BTH.DestQP()))
		}
		if p.Info.Op == bth.OpAck {
			psn := p.BTH.PSN()
			if p.AETH().Syndrome().Kind() == bth.SyndromeACK {
				psn = psn.Next()
			}
			to.gen.SetPSN(psn)
		}
	}
}

// completions checks that each receive completes once. Its memory is the user's again then.
func (s *stage) completions() {
	for _, wc := range s.poll() {
		if _, ok := s.grants[wc.ID]; !ok {
			s.t.Fatalf("completion %+v for a receive that is not posted", wc)
		}
		s.check("before a completion")
		delete(s.grants, wc.ID)
	}
}

func (s *stage) postRecv(v *victim) {
	n := s.r.IntN(3 * mtu)
	off := s.r.IntN(8192 - n)
	for _, ss := range s.grants {
		for _, x := range ss {
			if off+20480 < x.off+x.n && x.off < off+20480+n {
				return // memory of another receive
			}
		}
	}
	cut := s.r.IntN(n + 1)
	s.nextID++
	wr := qp.RecvWR{ID: s.nextID,
		SGEs: []qp.SGE{sge(s.recv, off, cut), {}, sge(s.recv, off+cut, n-cut)}}
	post := v.q.PostRecv
	if v.srq {
		post = s.srq.PostRecv
	}
	if k, _ := post([]qp.RecvWR{wr}); k == 1 {
		s.grants[wr.ID] = s.spans(wr.SGEs)
	}
	s.eng.HandleDoorbells(s.now)
}

// modify changes the state of a QP, usually to revive it.
func (s *stage) modify(v *victim) {
	to := qp.RTS
	if s.r.IntN(3) == 0 {
		to = []qp.State{qp.Err, qp.Init, qp.RTR}[s.r.IntN(3)]
	}
	must(s.t, v.q.Modify(s.now, &qp.Attr{State: qp.Err}, qp.AttrState))
	s.completions()
	if to != qp.Err {
		s.revive(v, to)
	}
}

// revive starts a new life of a QP in ERR.
func (s *stage) revive(v *victim, to qp.State) {
	s.completions()
	delete(s.named, v.q.QPN())
	must(s.t, v.q.Modify(s.now, &qp.Attr{State: qp.Reset}, qp.AttrState))
	raise(s.t, s.eng, s.now, v.q, v.attr, to)
	v.gen.SetPSN(v.attr.RQPSN)
}

// reregister deregisters and registers the region that peers use most.
func (s *stage) reregister(v *victim) {
	s.revoke(4096)
	must(s.t, s.mrs.Deregister(s.rw))
	if s.r.IntN(2) == 0 {
		s.receive(v.gen.Frame(), "a packet for a dead region: "+v.gen.What())
	}
	s.rw = s.register(s.pd, 4096, 4096, mr.LocalWrite|mr.RemoteWrite|mr.RemoteRead|mr.RemoteAtomic)
	for _, v := range s.victims {
		v.gen.Target().RKey = bth.RKey(s.rw.RKey())
	}
}

// drainSRQ lets several QPs compete for the last receive of the SRQ.
func (s *stage) drainSRQ() {
	for _, v := range s.victims {
		if v.srq {
			s.receive(v.gen.Frame(), "for the last receive: "+v.gen.What())
		}
	}
}

// theRest checks that in the end everything posted completes once and the bystander works.
func (s *stage) theRest() {
	s.grantHeld()
	s.pass(1e9)
	s.answers(1 << 20)
	s.completions()
	s.bystander()
	for _, v := range s.victims {
		must(s.t, v.q.Modify(s.now, &qp.Attr{State: qp.Err}, qp.AttrState))
	}
	s.completions()
	if n := len(s.grants) - s.srq.Len(); n != 0 {
		s.t.Fatalf("%d receives have not completed", n)
	}
	s.check("at the end")
}

// bystander sends and receives one message each.
func (s *stage) bystander() {
	n, err := s.calm.PostSend([]qp.SendWR{{ID: 1 << 40, Op: qp.OpSend, Flags: qp.Signaled,
		SGEs: []qp.SGE{sge(s.calmA, 0, 100)}}})
	if n != 1 {
		s.t.Fatal(err)
	}
	n, err = s.calm.PostRecv([]qp.RecvWR{{ID: 1 << 41, SGEs: []qp.SGE{sge(s.calmA, 512, 100)}}})
	if n != 1 {
		s.t.Fatal(err)
	}
	s.grants[1<<41] = []span{{30000 + 512, 100}}
	s.eng.HandleDoorbells(s.now)
	var p bth.Packet
	if !s.next(&p) || p.BTH.Opcode() != bth.RCSendOnly || p.BTH.DestQP() != 0x901 ||
		p.BTH.PSN() != 0xfffff8 {
		s.t.Fatalf("the bystander's SEND was not transmitted: %v", p.BTH)
	}
	s.deliver(bth.RCAck,
		func(b []byte, i *bth.OpcodeInfo) { bth.PutAETH(b[i.AETH:], bth.ACKNoLimit, 1) }, 0xfffff8,
		0)
	s.deliver(bth.RCSendOnly, func([]byte, *bth.OpcodeInfo) {}, 0xfffff0, 100)
	if !s.next(&p) || p.BTH.Opcode() != bth.RCAck || p.BTH.PSN() != 0xfffff0 {
		s.t.Fatal("the bystander does not acknowledge")
	}
	wcs := s.poll()
	if len(wcs) != 2 || wcs[0].ID != 1<<40 || wcs[0].Status != qp.Success || wcs[1].ID != 1<<41 ||
		wcs[1].Status != qp.Success || wcs[1].ByteLen != 100 {
		s.t.Fatalf("the bystander's completions: %+v", wcs)
	}
	s.check("after the bystander's message")
	delete(s.grants, 1<<41)
}

// deliver delivers a packet of the bystander's peer.
func (s *stage) deliver(o bth.Opcode, put func([]byte, *bth.OpcodeInfo), psn bth.PSN, n int) {
	i := o.Info()
	b := make([]byte, int(i.HeaderLen)+n)
	bth.PutBTH(b, &bth.BTHFields{Opcode: o, PKey: bth.DefaultPKey, DestQP: s.calm.QPN(), PSN: psn,
		AckReq: true})
	put(b, i)
	var p bth.Packet
	must(s.t, p.Parse(b))
	p.Src, p.Dst = witness, here
	s.eng.HandlePacket(s.now, &p)
	s.now += 5000
}

func FuzzResponder(f *testing.F) {
	seedTapes(f)
	f.Fuzz(func(t *testing.T, b []byte) { playResponder(t, b) })
}

func playResponder(t testing.TB, b []byte) *qp.Counters {
	tp := newTape(b)
	s := newStage(t, tp)
	for i := 0; i < maxSteps && !tp.ended(); i++ {
		s.step()
	}
	s.theRest()
	return s.eng.Counters()
}

// TestResponderSoak plays random tapes and checks that their packets are executed, refused,
// repeated and dropped for every reason.
func TestResponderSoak(t *testing.T) {
	soak(t, playResponder, "RcvdPkts", "SentPkts", "Completions", "CompletionErrors", "Flushed",
		"DuplicateRequest", "OutOfSeqRequest",
		"SentRNR", "SentSeqNAK", "SentErrNAK", "SentAcks", "DropNoQP", "DropType", "DropPKey",
		"DropNoRecv", "DropLength",
		"DropSequence", "DropAccess", "DropReplay", "DropMulticast", "DropQKey", "HeldPkts",
		"SentSelAcks", "SentCNPs")
}

// TestKnownCrashPackets sends packets that crashed other stacks to every QP.
func TestKnownCrashPackets(t *testing.T) {
	reth := func(va uint64, key bth.RKey, n uint32) []byte {
		b := make([]byte, bth.RETHLen)
		bth.PutRETH(b, va, key, n)
		return b
	}
	s := newStage(t, newTape(nil))
	key := bth.RKey(s.rw.RKey())
	kill := []struct {
		name string
		op   bth.Opcode
		dest bth.QPN // 0: every QP
		pad  uint8
		rest []byte
	}{
		{"opcode 0xff to the multicast QPN, 48 bytes", 0xff, bth.QPNMulticast, 0, make([]byte, 4)},
		{"opcode 0xff", 0xff, 0, 0, make([]byte, 4)},
		{"ATOMIC_WRITE without payload", bth.RCAtomicWrite, 0, 0, reth(s.rw.Addr(), key, 8)},
		{"ATOMIC_WRITE of zero length", bth.RCAtomicWrite, 0, 0,
			append(reth(s.rw.Addr(), key, 0), make([]byte, 8)...)},
		{"pad beyond the payload", bth.RCSendOnly, 0, 3, make([]byte, 2)},
		{"pad without payload", bth.RCWriteOnly, 0, 3, reth(s.rw.Addr(), key, 0)},
		{"pad on an ACK", bth.RCAck, 0, 3, make([]byte, 4)},
		{"WRITE: address and length wrap", bth.RCWriteOnly, 0, 0,
			append(reth(1<<64-4, key, 16), make([]byte, 16)...)},
		{"WRITE: address of the region, length to wrap", bth.RCWriteFirst, 0, 0,
			append(reth(s.rw.Addr(), key, 1<<32-1), make([]byte, mtu)...)},
		{"READ: address and length wrap", bth.RCReadRequest, 0, 0, reth(1<<64-1, key, 1<<31)},
		{"READ of 2^32-1 bytes", bth.RCReadRequest, 0, 0, reth(s.rw.Addr(), key, 1<<32-1)},
		{"atomic at the last address", bth.RCFetchAdd, 0, 0,
			append(binary.BigEndian.AppendUint64(nil, 1<<64-8), make([]byte, 20)...)},
		{"SEND with invalidate of key 0", bth.RCSendOnlyInv, 0, 0, make([]byte, 4)},
		{"UD without DETH", bth.UDSendOnly, 0, 0, nil},
		{"UD to the management QP", bth.UDSendOnly, bth.QPNGSI, 0, make([]byte, 8)},
		{"CNP", bth.CNP, 0, 0, make([]byte, 16)},
		{"FLUSH", bth.RCFlush, 0, 0, make([]byte, 20)},
	}
	for _, k := range kill {
		dests := []bth.QPN{k.dest}
		if k.dest == 0 {
			dests = nil
			for _, v := range s.victims {
				dests = append(dests, v.q.QPN())
			}
		}
		for _, d := range dests {
			var hdr [bth.MaxNetHeader]byte
			n := frame.PutHeaders(hdr[:], &frame.Address{Src: there, Dst: here, HopLimit: 1})
			b := make([]byte, bth.HeaderLen)
			bth.PutBTH(b, &bth.BTHFields{Opcode: k.op, PadCount: k.pad, PKey: bth.DefaultPKey,
				DestQP: d, PSN: 0xfffff0, AckReq: true})
			fr := append(append(append(hdr[:n:n], b...), k.rest...), 0, 0, 0, 0)
			new(frame.Encoder).Finish(fr, n)
			s.receive(fr, k.name)
			// Decoders stop most of these. The engine must handle them too.
			var p bth.Packet
			if p.Parse(append(b, k.rest...)) == nil {
				p.Src, p.Dst, p.NetHeader = there, here, fr[14:34]
				s.grant(&p)
				s.eng.HandlePacket(s.now, &p)
				s.budget += maxAnswers
			}
			s.answers(100)
			s.check(k.name)
		}
	}
	for _, v := range s.victims {
		must(t, v.q.Modify(s.now, &qp.Attr{State: qp.Reset}, qp.AttrState))
	}
	s.poll()
	s.bystander()
}

// TestSRQDrainedBetweenCheckAndUse lets two QPs start a message when the SRQ has one receive left.
// One gets it, the other sends an RNR NAK, and no other memory is touched.
func TestSRQDrainedBetweenCheckAndUse(t *testing.T) {
	s := newStage(t, newTape(nil))
	a, b := s.victims[1], s.victims[2]
	wr := qp.RecvWR{ID: 1, SGEs: []qp.SGE{sge(s.recv, 0, 1000)}}
	if _, err := s.srq.PostRecv([]qp.RecvWR{wr}); err != nil {
		t.Fatal(err)
	}
	s.grants[1] = s.spans(wr.SGEs)
	send := func(v *victim, o bth.Opcode, psn bth.PSN) {
		m := make([]byte, bth.HeaderLen+mtu)
		bth.PutBTH(m, &bth.BTHFields{Opcode: o, PKey: bth.DefaultPKey, DestQP: v.q.QPN(), PSN: psn,
			AckReq: true})
		var p bth.Packet
		must(t, p.Parse(m))
		p.Src, p.Dst = there, here
		s.eng.HandlePacket(s.now, &p)
		s.check("after a packet")
	}
	send(a, bth.RCSendFirst, 0xfffff0)
	send(b, bth.RCSendFirst, 0xfffff0)
	send(a, bth.RCSendLast, 0xfffff1)
	s.now += 1e6
	var p bth.Packet
	got := map[bth.QPN]bth.Syndrome{}
	for s.next(&p) {
		got[p.BTH.DestQP()] = p.AETH().Syndrome()
	}
	if got[a.attr.DestQPN].Kind() != bth.SyndromeACK ||
		got[b.attr.DestQPN].Kind() != bth.SyndromeRNR {
		t.Errorf("answers %v; want an ACK and an RNR NAK", got)
	}
	if wcs := s.poll(); len(wcs) != 1 || wcs[0].ID != 1 || wcs[0].ByteLen != 2*mtu {
		t.Errorf("completions %+v", wcs)
	}
}
