package engine

import (
	"math/rand/v2"
	"testing"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/mr"
	"github.com/gorxe/gorxe/qp"
)

// poster posts arbitrary work requests to a QP of arbitrary type and state.
type poster struct {
	*bench
	r       *rand.Rand
	q       *qp.QP
	srq     *qp.SRQ
	a, b    *mr.MR
	win     *mr.Window
	fast    *mr.FastMR
	keys    []bth.RKey
	ahs     []*qp.AH
	pending map[uint64]int  // completions that may still come
	shared  map[uint64]bool // receives on the SRQ
	nextID  uint64
}

func newPoster(t testing.TB, tp *tape) *poster {
	p := &poster{bench: newBench(t), r: rand.New(tp), pending: map[uint64]int{},
		shared: map[uint64]bool{}}
	p.a = p.register(p.pd, 4096, 8192, mr.LocalWrite|mr.RemoteRead)
	p.b = p.register(p.pd2, 16384, 4096, mr.LocalWrite)
	ro := p.register(p.pd, 24000, 1000, 0)
	// Receives and READs may change what they name. The rest of the arena must not change.
	p.granted = append(p.granted, span{4096, 8192})
	p.keys = []bth.RKey{bth.RKey(p.a.LKey()), bth.RKey(p.a.LKey()), bth.RKey(p.a.LKey()),
		bth.RKey(p.b.LKey()), bth.RKey(ro.LKey()), bth.RKey(p.a.RKey()), 0}
	var err error
	p.srq, err = p.eng.NewSRQ(p.pd, qp.SRQConfig{Depth: p.r.IntN(8) + 1, MaxSGE: p.r.IntN(4)})
	must(t, err)
	p.win, err = p.mrs.AllocWindow(p.pd, mr.WindowType(1+p.r.IntN(2)))
	must(t, err)
	p.fast, err = p.mrs.AllocFastMR(p.pd, 4096)
	must(t, err)
	good := path(here, there)
	bare := frame.NewBarePath(&frame.Address{Src: here, Dst: there})
	ah := qp.NewAH(&good, nil)
	p.ahs = []*qp.AH{ah, ah, ah, nil, {}, qp.NewAH(&frame.Path{}, nil), qp.NewAH(&bare, nil)}
	ia := qp.InitAttr{Type: qp.Type(p.r.IntN(3)), PD: p.pd, SendCQ: p.cq, RecvCQ: p.cq,
		SQDepth: p.r.IntN(20), RQDepth: p.r.IntN(20),
		MaxSendSGE: p.r.IntN(5), MaxRecvSGE: p.r.IntN(5), MaxInline: p.r.IntN(300),
		SignalAll: p.r.IntN(2) == 0}
	if p.r.IntN(3) == 0 {
		ia.SRQ = p.srq
	}
	p.q, err = p.eng.CreateQP(ia)
	must(t, err)
	p.restart()
	return p
}

// restart moves the QP to some state.
func (p *poster) restart() {
	must(p.t, p.q.Modify(p.now, &qp.Attr{State: qp.Reset}, qp.AttrState))
	clear(p.pending)

	attr := connAttr(there, 0x700)
	attr.MaxRdAtomic = uint8(p.r.IntN(3))
	to := []qp.State{qp.Reset, qp.Init, qp.RTR, qp.SQD, qp.Err, qp.RTS, qp.RTS, qp.RTS, qp.RTS,
		qp.RTS}[p.r.IntN(10)]
	switch to {
	case qp.Reset:
	case qp.SQD:
		raise(p.t, p.eng, p.now, p.q, attr, qp.RTS)
		must(p.t, p.q.Modify(p.now, &qp.Attr{State: qp.SQD}, qp.AttrState))
	case qp.Err:
		must(p.t, p.q.Modify(p.now, &qp.Attr{State: qp.Err}, qp.AttrState))
	default:
		raise(p.t, p.eng, p.now, p.q, attr, to)
	}
}

// sge returns a valid SGE or anything.
func (p *poster) sge() qp.SGE {
	r := p.r
	g := qp.SGE{Addr: 0x10000 + 4096 + uint64(r.IntN(8192)), Length: uint32(r.IntN(600)),
		LKey: bth.LKey(p.keys[r.IntN(len(p.keys))])}
	switch r.IntN(12) {
	case 0:
		g.Addr = r.Uint64()
	case 1:
		g.Addr = -uint64(r.IntN(64)) // its length wraps beyond 64 bits
	case 2:
		g.Length = []uint32{0, 8, 1 << 31, 1<<32 - 1, r.Uint32()}[r.IntN(5)]
	case 3:
		g.LKey = bth.LKey(r.Uint32())
	}
	return g
}

func (p *poster) sges() []qp.SGE {
	var out []qp.SGE
	for range p.r.IntN(6) {
		out = append(out, p.sge())
	}
	if p.r.IntN(4) == 0 {
		out = []qp.SGE{{Addr: 0x10000 + 4096 + uint64(p.r.IntN(1000)), Length: 8,
			LKey: bth.LKey(p.a.LKey())}}
	}
	return out
}

func (p *poster) sendWR() qp.SendWR {
	r := p.r
	p.nextID++
	wr := qp.SendWR{ID: p.nextID, Op: qp.Op(r.IntN(int(qp.OpRegMR) + 3)),
		Flags:      qp.SendFlags(r.Uint32()),
		RemoteAddr: r.Uint64(), RKey: p.keys[r.IntN(len(p.keys))], Imm: r.Uint32(),
		InvKey:  p.keys[r.IntN(len(p.keys))],
		Compare: r.Uint64(), SwapAdd: r.Uint64(), AH: p.ahs[r.IntN(len(p.ahs))],
		RemoteQPN: bth.QPN(r.Uint32()), RemoteQKey: bth.QKey(r.Uint32()),
		Length: r.Uint32(), Placement: qp.Placement(r.IntN(5)), Level: qp.Level(r.IntN(4)),
		Access: mr.Access(r.Uint32())}
	wr.SGEs = p.sges()
	if r.IntN(3) == 0 {
		wr.Inline = make([]byte, r.IntN(400))
		if r.IntN(3) > 0 {
			wr.SGEs = nil
		}
	}
	if r.IntN(2) == 0 { // a valid one
		wr.Op = qp.Op(r.IntN(int(qp.OpWrite)))
		if p.q.Type() == qp.RC {
			wr.Op = qp.Op(r.IntN(int(qp.OpRegMR) + 1))
		}
		wr.SGEs, wr.Inline = []qp.SGE{sge(p.a, 8*r.IntN(900), 8)}, nil
	}
	if wr.Op == qp.OpBindMW && r.IntN(2) == 0 {
		if k, err := p.mrs.NextRKey(p.win); err == nil {
			wr.RKey = bth.RKey(k)
		}
	}
	if wr.Op == qp.OpRegMR && r.IntN(2) == 0 {
		if m, err := p.mrs.Prepare(p.fast, p.mem[4096:4096+1+r.IntN(4096)], r.Uint64()&^7,
			mr.LocalWrite|mr.Access(r.IntN(16))); err == nil {
			wr.RKey = bth.RKey(m.RKey())
			p.keys = append(p.keys[:6:6], bth.RKey(m.LKey()), wr.RKey)
		}
	}
	return wr
}

func (p *poster) step() {
	r := p.r
	switch r.IntN(10) {
	case 0:
		p.pass(qp.Time(r.Int64N(1 << r.IntN(30))))
	case 1:
		if p.q.State() == qp.Err || r.IntN(6) == 0 {
			p.restart()
		}
	case 2, 3, 4:
		p.postRecv()
	default:
		p.postSend()
	}
	if r.IntN(3) > 0 {
		p.eng.HandleDoorbells(p.now)
	}
	var pkt bth.Packet
	for range r.IntN(50) {
		if !p.next(&pkt) {
			break
		}
		if r.IntN(3) > 0 && pkt.Info.Transport == bth.RC {
			p.ack(&pkt)
		}
	}
	p.completions()
	p.check("after a step")
}

func (p *poster) postSend() {
	wrs := make([]qp.SendWR, p.r.IntN(4))
	for i := range wrs {
		wrs[i] = p.sendWR()
	}
	n, err := p.q.PostSend(wrs)
	if (err == nil && n != len(wrs)) || (err != nil && n == len(wrs) && n > 0) {
		p.t.Fatalf("PostSend took %d of %d: %v", n, len(wrs), err)
	}
	for _, wr := range wrs[:n] {
		p.pending[wr.ID]++
	}
	for i := range wrs { // what was posted is copied
		clear(wrs[i].SGEs)
		clear(wrs[i].Inline)
	}
}

func (p *poster) postRecv() {
	wrs := make([]qp.RecvWR, p.r.IntN(4))
	for i := range wrs {
		p.nextID++
		wrs[i] = qp.RecvWR{ID: p.nextID, SGEs: p.sges()}
		if p.r.IntN(2) == 0 { // valid if its key is right
			g := qp.SGE{Addr: 0x10000 + 4096 + uint64(p.r.IntN(7000)),
				Length: uint32(p.r.IntN(1000)), LKey: bth.LKey(p.a.LKey())}
			if p.r.IntN(4) == 0 {
				g.Addr, g.LKey = 0x10000+16384+uint64(p.r.IntN(3000)), bth.LKey(p.b.LKey())
			}
			wrs[i].SGEs = []qp.SGE{g}
		}
	}
	if p.r.IntN(4) == 0 {
		n, _ := p.srq.PostRecv(wrs)
		for _, wr := range wrs[:n] {
			p.shared[wr.ID] = true
		}
		return
	}
	n, err := p.q.PostRecv(wrs)
	if (err == nil && n != len(wrs)) || (err != nil && n == len(wrs) && n > 0) {
		p.t.Fatalf("PostRecv took %d of %d: %v", n, len(wrs), err)
	}
	for _, wr := range wrs[:n] {
		p.pending[wr.ID]++
	}
}

// ack acknowledges a packet.
func (p *poster) ack(q *bth.Packet) {
	b := make([]byte, bth.RCAck.Info().HeaderLen)
	bth.PutBTH(b, &bth.BTHFields{Opcode: bth.RCAck, PKey: bth.DefaultPKey, DestQP: p.q.QPN(),
		PSN: q.BTH.PSN()})
	bth.PutAETH(b[bth.HeaderLen:], bth.ACKNoLimit, 0)
	var a bth.Packet
	must(p.t, a.Parse(b))
	a.Src, a.Dst = there, here
	p.eng.HandlePacket(p.now, &a)
}

// completions checks that only posted work completes, and only once.
func (p *poster) completions() {
	for _, wc := range p.poll() {
		if p.shared[wc.ID] {
			delete(p.shared, wc.ID)
			continue
		}
		if p.pending[wc.ID]--; p.pending[wc.ID] < 0 {
			p.t.Fatalf("completion %+v of work that is not posted, or a second one", wc)
		}
	}
}

// theEnd checks that nothing stays on the queues in ERR.
func (p *poster) theEnd() {
	must(p.t, p.q.Modify(p.now, &qp.Attr{State: qp.Err}, qp.AttrState))
	p.completions()
	if s, r := p.q.SQLen(), p.q.RQLen(); s != 0 || r != 0 {
		p.t.Fatalf("%d sends and %d receives are left in ERR", s, r)
	}
	p.eng.DestroyQP(p.q)
	if n, err := p.q.PostSend([]qp.SendWR{{Op: qp.OpSend}}); n != 0 || err == nil {
		p.t.Fatalf("a destroyed QP took %d: %v", n, err)
	}
	p.eng.HandleDoorbells(p.now)
	p.check("at the end")
}

func FuzzPostSend(f *testing.F) {
	seedTapes(f)
	f.Fuzz(func(t *testing.T, b []byte) { playPosts(t, b) })
}

func playPosts(t testing.TB, b []byte) *qp.Counters {
	tp := newTape(b)
	p := newPoster(t, tp)
	for i := 0; i < maxSteps && !tp.ended(); i++ {
		p.step()
	}
	p.theEnd()
	return p.eng.Counters()
}

// TestPostSoak plays random tapes as TestResponderSoak does.
func TestPostSoak(t *testing.T) {
	soak(t, playPosts, "SentPkts", "SentBytes", "Completions", "CompletionErrors", "Flushed")
}

// FuzzPostRecv posts receives, and delivers messages for them.
func FuzzPostRecv(f *testing.F) {
	seedTapes(f)
	f.Fuzz(func(t *testing.T, b []byte) { playReceives(t, b) })
}

func playReceives(t testing.TB, b []byte) *qp.Counters {
	tp := newTape(b)
	p := newPoster(t, tp)
	psn := bth.PSN(0xfffff0)
	for i := 0; i < maxSteps && !tp.ended(); i++ {
		p.postRecv()
		if p.r.IntN(4) == 0 || p.q.State() == qp.Err {
			p.restart()
			psn = 0xfffff0
		}
		psn = p.message(psn)
		p.completions()
		p.check("after a message")
	}
	p.theEnd()
	return p.eng.Counters()
}

// TestReceiveSoak plays random tapes as TestResponderSoak does.
func TestReceiveSoak(t *testing.T) {
	soak(t, playReceives, "RcvdPkts", "SentAcks", "Completions", "CompletionErrors", "Flushed",
		"DropNoRecv", "DropNoQP", "DropLength")
}

// message delivers a SEND to the QP in sequence.
func (p *poster) message(psn bth.PSN) bth.PSN {
	o := map[qp.Type]bth.Opcode{qp.RC: bth.RCSendOnly, qp.UC: bth.UCSendOnly,
		qp.UD: bth.UDSendOnly}[p.q.Type()]
	i, n := o.Info(), 4*p.r.IntN(mtu/4+1)
	b := make([]byte, int(i.HeaderLen)+n)
	bth.PutBTH(b, &bth.BTHFields{Opcode: o, PKey: bth.DefaultPKey, DestQP: p.q.QPN(), PSN: psn,
		AckReq: p.r.IntN(2) == 0})
	if i.DETH != 0 {
		bth.PutDETH(b[i.DETH:], qkey, 0x700)
	}
	var pkt bth.Packet
	must(p.t, pkt.Parse(b))
	pkt.Src, pkt.Dst, pkt.NetHeader = there, here, make([]byte, 20)
	p.eng.HandlePacket(p.now, &pkt)
	p.now += 100_000
	for p.next(&pkt) {
		if pkt.Info.Op == bth.OpAck && pkt.AETH().Syndrome().Kind() != bth.SyndromeACK {
			return pkt.BTH.PSN()
		}
	}
	return psn.Next()
}
