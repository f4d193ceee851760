package qp

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/mr"
)

// talk is a scripted exchange with one QP: the test acts as its peer. It says packets and hears
// what the QP sends, as text:
//
//	k.say(pkt{op: bth.RCWriteOnly, psn: 0, ...})
//	k.hears("ACK +0 msn=1")
//
// PSNs are counted from base, which is just before the wrap, so most tests cross it.
type talk struct {
	*world
	*end
	q     *QP
	base  bth.PSN
	saved []byte // the memory at the last snapshot
}

const (
	peerQPN = bth.QPN(0x77)
	talkMTU = 256
)

// newTalk creates a QP in RTS. change may modify its parameters and attributes.
func newTalk(t testing.TB, typ Type, change ...func(*InitAttr, *Attr)) *talk {
	t.Helper()
	w := newWorld(t, 1)
	k := &talk{world: w, end: w.ends[1]}
	k.renew(typ, change...)
	return k
}

// renew replaces the QP with a new one.
func (k *talk) renew(typ Type, change ...func(*InitAttr, *Attr)) {
	k.t.Helper()
	e := k.end
	ia := InitAttr{Type: typ, PD: e.pd, SendCQ: e.cq, RecvCQ: e.cq, SQDepth: 64, RQDepth: 16,
		MaxSendSGE: 4, MaxRecvSGE: 4, MaxInline: 256}
	at := connectAttr()
	at.PathMTU, at.RQPSN, at.SQPSN = talkMTU, 0xfffffe, 0xfffffe
	at.MaxRdAtomic, at.MaxDestRdAtomic = 4, 4
	for _, c := range change {
		c(&ia, &at)
	}
	q, err := e.CreateQP(ia)
	must(k.t, err)
	e.qp, k.q, k.base = q, q, at.RQPSN
	k.connect(q, at, 1, peerQPN)
	k.hears() // serves the QP for the first time
}

// pkt is a packet from the test.
type pkt struct {
	op        bth.Opcode
	psn       int  // counted from base
	noAck     bool // clear AckReq
	solicited bool
	va        uint64
	key       bth.RKey
	n         uint32 // DMALen
	data      []byte
	imm       uint32
	inv       bth.RKey
	compare   uint64
	swap      uint64 // or the addend
	syndrome  bth.Syndrome
	msn       bth.MSN
	orig      uint64
	placement Placement // FLUSH
	level     Level
	qkey      bth.QKey
	src       bth.QPN
	pkey      bth.PKey // 0: the default one
	dest      bth.QPN  // 0: the QP of the talk
	from      bth.GID  // zero: the right one
	ipv4      bool
}

// wire returns the packet's bytes from the BTH to the pad.
func (p *pkt) wire(q *QP, base bth.PSN) []byte {
	info := p.op.Info()
	pad := -len(p.data) & 3
	b := make([]byte, int(info.HeaderLen)+len(p.data)+pad)
	f := bth.BTHFields{Opcode: p.op, PadCount: uint8(pad), PKey: p.pkey, DestQP: p.dest,
		PSN:    base.Add(uint32(p.psn) & psnMask),
		AckReq: !p.noAck && info.Request, Solicited: p.solicited}
	if f.PKey == 0 {
		f.PKey = bth.DefaultPKey
	}
	if f.DestQP == 0 {
		f.DestQP = q.qpn
	}
	bth.PutBTH(b, &f)
	put := func(off uint8, f func(b []byte)) {
		if off != 0 {
			f(b[off:])
		}
	}
	put(info.FETH, func(b []byte) { bth.PutFETH(b, uint8(p.placement), uint8(p.level)) })
	put(info.RETH, func(b []byte) { bth.PutRETH(b, p.va, p.key, p.n) })
	put(info.AETH, func(b []byte) { bth.PutAETH(b, p.syndrome, p.msn) })
	put(info.AtomicETH, func(b []byte) { bth.PutAtomicETH(b, p.va, p.key, p.swap, p.compare) })
	put(info.AtomicAckETH, func(b []byte) { bth.PutAtomicAckETH(b, p.orig) })
	put(info.ImmDt, func(b []byte) { bth.PutImmDt(b, p.imm) })
	put(info.IETH, func(b []byte) { bth.PutIETH(b, p.inv) })
	put(info.DETH, func(b []byte) { bth.PutDETH(b, p.qkey, p.src) })
	copy(b[info.HeaderLen:], p.data)
	return b
}

// say passes packets to the QP, one after the other without a pause.
func (k *talk) say(ps ...pkt) {
	k.t.Helper()
	for i := range ps {
		k.sayRaw(ps[i].wire(k.q, k.base), func(p *bth.Packet) {
			if !ps[i].from.IsZero() {
				p.Src = ps[i].from
			}
			if ps[i].ipv4 {
				p.NetHeader = bytes.Repeat([]byte{0x45}, 20)
			}
		})
	}
}

func (k *talk) sayRaw(b []byte, edit func(*bth.Packet)) {
	k.t.Helper()
	p := &bth.Packet{}
	if err := p.Parse(b); err != nil {
		k.t.Fatalf("the test sends a packet that does not parse: %v", err)
	}
	p.Src, p.Dst = k.ends[0].gid, k.gid
	p.NetHeader = bytes.Repeat([]byte{0x60}, 40)
	if edit != nil {
		edit(p)
	}
	k.HandlePacket(k.now, p)
}

// listen lets a microsecond pass and returns the packets that the QP sends.
func (k *talk) listen() []*bth.Packet {
	k.now += 1000
	k.HandleDoorbells(k.now)
	k.HandleTimeout(k.now)
	var out []*bth.Packet
	var buf [8192]byte
	for k.HasTransmit(k.now) {
		tx := k.PollTransmit(k.now, buf[:])
		if tx == nil {
			break
		}
		p := &bth.Packet{}
		must(k.t, p.Parse(append([]byte(nil), buf[tx.NetLen:tx.Len]...)))
		out = append(out, p)
	}
	k.collect()
	return out
}

// heard describes a packet as text: operation, PSN from base, AckReq, MSN, payload, original value.
func (k *talk) heard(p *bth.Packet) string {
	name := strings.TrimPrefix(p.Info.Name, p.Info.Transport.String()+" ")
	if p.Info.Op == bth.OpCNP {
		return name
	}
	if p.Info.Op == bth.OpAck {
		name = p.AETH().Syndrome().String()
	}
	s := fmt.Sprintf("%s %+d", name, p.BTH.PSN().Sub(k.base))
	if p.Info.AETH != 0 {
		s += fmt.Sprintf(" msn=%d", p.AETH().MSN())
	}
	if p.Info.Op == bth.OpAtomicAck {
		s += fmt.Sprintf(" orig=%d", p.AtomicAckETH().Original())
	}
	if p.Info.RETH != 0 {
		s += fmt.Sprintf(" dma=%d", p.RETH().DMALen())
	}
	if p.BTH.AckReq() {
		s += " ask"
	}
	switch h, ok := bth.ParseSelACK(p.Payload); {
	case ok && p.Info.Op == bth.OpAck:
		s += k.heardHeld(h)
	case len(p.Payload) > 0:
		s += fmt.Sprintf(" %dB", len(p.Payload))
	}
	return s
}

// heardHeld describes a SelACK as text: the held packets and the number of duplicates.
func (k *talk) heardHeld(h bth.SelACK) string {
	s := " held"
	start := int(h.Start().Sub(k.base))
	for a, b := h.Run(0); a < b; a, b = h.Run(b) {
		if s += fmt.Sprintf(" %+d", start+a); b-a > 1 {
			s += fmt.Sprintf("..%+d", start+b-1)
		}
	}
	if n := h.Duplicates(); n > 0 {
		s += fmt.Sprintf(" dup=%d", n)
	}
	return s
}

// hears checks that the QP sends exactly these packets, in this order, or none.
func (k *talk) hears(want ...string) {
	k.t.Helper()
	var got []string
	for _, p := range k.listen() {
		got = append(got, k.heard(p))
	}
	compare(k.t, "heard", got, want)
}

// completes checks the completions since the last call: "7 success RECV 64B", or "7 local length
// error" for a failed one.
func (k *talk) completes(want ...string) {
	k.t.Helper()
	k.collect()
	var got []string
	for _, wc := range k.wcs {
		got = append(got, wcText(wc))
	}
	k.wcs = nil
	compare(k.t, "completions", got, want)
}

func wcText(wc WC) string {
	if wc.Status != Success {
		return fmt.Sprintf("%d %s", wc.ID, wc.Status)
	}
	s := fmt.Sprintf("%d success %s %dB", wc.ID, wc.Opcode, wc.ByteLen)
	if wc.Flags&WCWithImm != 0 {
		s += fmt.Sprintf(" imm=%d", wc.Imm)
	}
	if wc.Flags&WCWithInv != 0 {
		s += " inv"
	}
	return s
}

// raises checks the asynchronous events since the last call.
func (k *talk) raises(want ...string) {
	k.t.Helper()
	k.collect()
	var got []string
	for _, ev := range k.evs {
		got = append(got, ev.Kind.String())
	}
	k.evs = nil
	compare(k.t, "events", got, want)
}

func compare(t testing.TB, what string, got, want []string) {
	t.Helper()
	if g, w := strings.Join(got, "\n\t"), strings.Join(want, "\n\t"); g != w {
		t.Fatalf("%s\n\t%s\nwant\n\t%s", what, g, w)
	}
}

// is checks the QP's state.
func (k *talk) is(st State) {
	k.t.Helper()
	if k.q.State() != st {
		k.t.Fatalf("QP is in %s, want %s", k.q.State(), st)
	}
}

func (k *talk) equal(what string, got, want any) {
	k.t.Helper()
	if got != want {
		k.t.Fatalf("%s is %v, want %v", what, got, want)
	}
}

// snapshot saves the memory, and unchanged compares it.
func (k *talk) snapshot() { k.saved = bytes.Clone(k.mem) }

func (k *talk) unchanged(but ...[2]int) {
	k.t.Helper()
	for _, r := range but {
		copy(k.saved[r[0]:r[1]], k.mem[r[0]:r[1]])
	}
	if !bytes.Equal(k.saved, k.mem) {
		for i := range k.mem {
			if k.mem[i] != k.saved[i] {
				k.t.Fatalf("memory changed at offset %d", i)
			}
		}
	}
}

// at returns the peer's address of byte off of the QP's memory.
func (k *talk) at(off int) uint64 { return k.mr.Addr() + uint64(off) }

func (k *talk) rkey() bth.RKey { return bth.RKey(k.mr.RKey()) }

func (k *talk) post(wrs ...SendWR) { k.t.Helper(); k.world.post(k.q, wrs...) }

// recvs posts receives of the given lengths, with IDs 1, 2, ..., at offset 512K.
func (k *talk) recvs(lengths ...int) {
	k.t.Helper()
	off := 512 << 10
	for i, n := range lengths {
		k.world.recv(k.q, RecvWR{ID: uint64(i + 1), SGEs: []SGE{k.sge(off, n)}})
		off += n
	}
}

// region registers new memory at end 1.
func (k *talk) region(pd *mr.PD, n int, a mr.Access) (*mr.MR, []byte) {
	k.t.Helper()
	mem := make([]byte, n)
	m, err := k.mrs.Register(pd, mem, mr.AddrOf(mem), a)
	must(k.t, err)
	return m, mem
}

func seq(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8 + 1)
	}
	return b
}

// Packets that many tests use.

func (k *talk) write(psn int, data []byte) pkt {
	return pkt{op: bth.RCWriteOnly, psn: psn, va: k.at(0), key: k.rkey(), n: uint32(len(data)),
		data: data}
}

func send(psn int, data []byte) pkt { return pkt{op: bth.RCSendOnly, psn: psn, data: data} }

func (k *talk) read(psn, off, n int) pkt {
	return pkt{op: bth.RCReadRequest, psn: psn, va: k.at(off), key: k.rkey(), n: uint32(n)}
}

func (k *talk) fetchAdd(psn, off int, add uint64) pkt {
	return pkt{op: bth.RCFetchAdd, psn: psn, va: k.at(off), key: k.rkey(), swap: add}
}

func ack(psn int) pkt { return answerPkt(psn, bth.ACKNoLimit) }

func nak(psn int, c bth.NAKCode) pkt { return answerPkt(psn, bth.NAKSyndrome(c)) }

func rnr(psn int, timer uint8) pkt { return answerPkt(psn, bth.RNRSyndrome(timer)) }

func answerPkt(psn int, s bth.Syndrome) pkt { return pkt{op: bth.RCAck, psn: psn, syndrome: s} }
