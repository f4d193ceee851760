package packets

import (
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/frame"
)

const (
	// MaxFrame is the length of the longest frame that a Generator makes, in bytes.
	MaxFrame = bth.MaxNetHeader + bth.MaxHeaderLen + maxPayload + 3 + bth.ICRCLen + maxTail
	// maxPayload exceeds the largest path MTU, because oversized packets are worth trying.
	maxPayload = 4096 + 64
	// maxTail is the largest Ethernet padding after the ICRC, in bytes.
	maxTail = 64
)

// Target describes the stack under test. The zero value is usable: then all numbers are drawn.
type Target struct {
	Address   frame.Address // Ethernet, IP and UDP headers
	Transport bth.Transport // RC, UC or UD of the QP; TransportNone: any
	QPN       bth.QPN       // the QP aimed at
	PSN       bth.PSN       // the next one that it expects
	PKey      bth.PKey      // 0: bth.DefaultPKey
	QKey      bth.QKey      // UD
	SrcQPN    bth.QPN       // UD: the sender
	MTU       bth.MTU       // path MTU, bytes; 0: 1024
	Addr      uint64        // memory that the peer may access, with its key and length in bytes
	RKey      bth.RKey
	Len       uint32
	// more memory to try: without the right, of others, deregistered, with local keys
	Others    []Region
	Responses bool    // also make answers (ACKs, READ responses)
	Sound     float64 // share of packets without mutations, 0 to 1
}

// Region is memory as a peer names it.
type Region struct {
	Addr uint64
	RKey bth.RKey
	Len  uint32 // bytes
}

// Generator makes frames. It must be used by one goroutine.
type Generator struct {
	t    Target
	r    *rand.Rand
	enc  frame.Encoder
	n    uint64
	what []string
	open bth.Operation // the message that a FIRST has started
	left int           // packets until its LAST
	buf  [MaxFrame]byte
	pkt  packet
}

// packet is a transport packet before it is written.
type packet struct {
	f       bth.BTHFields
	info    *bth.OpcodeInfo
	va      uint64
	key     bth.RKey
	dma     uint32
	qkey    bth.QKey
	srcQPN  bth.QPN
	payload int
	cut     int // bytes missing at the end; negative: too many
	version uint8
	next    bth.PSN // what the target expects after it
}

// New makes a Generator from a seed.
func New(seed uint64, t Target) *Generator {
	return NewSource(rand.NewPCG(seed, 0x5eed), t)
}

// NewSource makes a Generator that draws its decisions from src, such as a fuzzing engine's input.
func NewSource(src rand.Source, t Target) *Generator {
	if t.PKey == 0 {
		t.PKey = bth.DefaultPKey
	}
	if t.MTU == 0 {
		t.MTU = 1024
	}
	return &Generator{t: t, r: rand.New(src)}
}

// N returns the number of packets made.
func (g *Generator) N() uint64 { return g.n }

// What describes the last packet and its errors.
func (g *Generator) What() string { return strings.Join(g.what, ", ") }

// SetPSN sets the next PSN that the target expects.
func (g *Generator) SetPSN(p bth.PSN) { g.t.PSN = p & 0xffffff }

// Target returns the Generator's target. Callers may change it between packets.
func (g *Generator) Target() *Target { return &g.t }

// Packet makes a transport packet, from the BTH to the pad, without ICRC. It is valid until the
// next call.
func (g *Generator) Packet() []byte {
	g.n++
	g.what = g.what[:0]
	g.draw()
	if g.r.Float64() >= g.t.Sound {
		for range 1 + g.r.IntN(3) {
			g.mutate()
		}
	}
	g.t.PSN = g.pkt.next
	return g.write(g.buf[bth.MaxNetHeader:])
}

// Frame makes an Ethernet frame around a Packet. It is valid until the next call.
func (g *Generator) Frame() []byte {
	p := g.Packet()
	b, n, short := g.frame(p)
	if g.r.Float64() >= g.t.Sound {
		b = g.damage(b, n)
	}
	return b[:max(0, len(b)-short)]
}

// frame puts headers in front of p, which lies in g.buf, and an ICRC behind it. n is the length of
// the headers before the BTH. short is the number of bytes at the end of b that the frame does not
// have, because p is shorter than a BTH.
func (g *Generator) frame(p []byte) (b []byte, n, short int) {
	a := g.t.Address
	if a.HopLimit == 0 {
		a.HopLimit = 64
	}
	if a.Src.IsIPv4() != a.Dst.IsIPv4() {
		a.Dst = a.Src
	}
	var hdr [bth.MaxNetHeader]byte
	n = frame.PutHeaders(hdr[:], &a)
	b = g.buf[bth.MaxNetHeader-n:]
	copy(b, hdr[:n])
	// Finish needs a BTH; what the packet lacks is cut off later
	short = max(0, bth.HeaderLen-len(p))
	b = b[:n+len(p)+short+bth.ICRCLen]
	g.enc.Finish(b, n)
	return b, n, short
}

// draw makes a valid packet for the target.
func (g *Generator) draw() { g.fill(g.opcode()) }

// fill makes a valid packet with an opcode.
func (g *Generator) fill(o bth.Opcode) {
	p := &g.pkt
	*p = packet{va: g.t.Addr, key: g.t.RKey, qkey: g.t.QKey, srcQPN: g.t.SrcQPN,
		next: g.t.PSN.Next()}
	p.info = o.Info()
	g.what = append(g.what, p.info.Name)
	p.f = bth.BTHFields{Opcode: o, PKey: g.t.PKey, DestQP: g.t.QPN, PSN: g.t.PSN,
		AckReq: g.r.IntN(3) == 0, Solicited: g.r.IntN(8) == 0}
	mtu := int(g.t.MTU)
	avail := int(g.t.Len)
	switch {
	case p.info.Op == bth.OpReadRequest:
		p.dma = uint32(g.r.IntN(avail + 1))
		p.next = g.t.PSN.Add(max(1, (p.dma+uint32(mtu)-1)/uint32(mtu)))
	case p.info.AtomicETH != 0:
		p.va = (p.va + 7) &^ 7
	case p.info.HasPayload && !p.info.End:
		p.payload = mtu
	case p.info.HasPayload && p.info.Start:
		p.payload = g.r.IntN(min(mtu, max(avail, 8)) + 1)
	case p.info.HasPayload:
		p.payload = 1 + g.r.IntN(mtu)
	}
	if p.info.RETH != 0 && p.info.Op == bth.OpWrite {
		p.dma = uint32(p.payload)
		if !p.info.End { // first of several
			g.left = 1 + g.r.IntN(4)
			p.dma = uint32(mtu*g.left + 1 + g.r.IntN(mtu))
		}
		if int(p.dma) < avail {
			p.va += uint64(g.r.IntN(avail - int(p.dma)))
		}
	}
	p.f.PadCount = uint8(-p.payload & 3)
}

// opcode draws an opcode that may come next.
func (g *Generator) opcode() bth.Opcode {
	r, t := g.r, g.t.Transport
	if t == bth.TransportNone {
		t = bth.Transport(1 + r.IntN(3))
	}
	if g.left > 0 && t != bth.UD {
		g.left--
		return bth.RequestOpcode(t, g.open, false, g.left == 0, r.IntN(3) == 0, false)
	}
	if g.t.Responses && r.IntN(4) > 0 {
		return []bth.Opcode{bth.RCAck, bth.RCAck, bth.RCReadResponseFirst, bth.RCReadResponseMiddle,
			bth.RCReadResponseLast, bth.RCReadResponseOnly, bth.RCAtomicAck}[r.IntN(7)]
	}
	ops := []bth.Operation{bth.OpSend, bth.OpWrite, bth.OpReadRequest, bth.OpCmpSwap,
		bth.OpFetchAdd}
	op := ops[r.IntN(len(ops))]
	switch {
	case t == bth.UD:
		op = bth.OpSend
	case t == bth.UC:
		op = ops[r.IntN(2)]
	}
	end := t == bth.UD || op > bth.OpWrite || r.IntN(3) > 0
	if !end {
		g.open, g.left = op, 1+r.IntN(4)
	}
	o := bth.RequestOpcode(t, op, true, end, r.IntN(3) == 0 && op <= bth.OpWrite, false)
	if o == bth.OpcodeNone {
		o = bth.RequestOpcode(t, op, true, end, false, false)
	}
	if o == bth.RCSendOnly && r.IntN(4) == 0 {
		o = bth.RCSendOnlyInv
	}
	return o
}

// write lays out the packet.
func (g *Generator) write(b []byte) []byte {
	p := &g.pkt
	n := int(p.info.HeaderLen)
	clear(b[:n])
	bth.PutBTH(b, &p.f)
	b[1] = b[1]&^0x0f | p.version&0x0f
	g.extensions(b)
	seed := g.r.Uint64()
	for i := range p.payload {
		b[n+i] = byte(seed>>(i%8*8)) + byte(i)
	}
	n += p.payload
	for range p.f.PadCount {
		b[n] = 0
		n++
	}
	return b[:max(0, n-p.cut)]
}

func (g *Generator) extensions(b []byte) {
	p, i := &g.pkt, g.pkt.info
	if i.RETH != 0 {
		bth.PutRETH(b[i.RETH:], p.va, p.key, p.dma)
	}
	if i.AtomicETH != 0 {
		bth.PutAtomicETH(b[i.AtomicETH:], p.va, p.key, g.r.Uint64(), g.r.Uint64())
	}
	if i.AETH != 0 {
		bth.PutAETH(b[i.AETH:], g.syndrome(), bth.MSN(g.r.Uint32()&0xffffff))
	}
	if i.AtomicAckETH != 0 {
		bth.PutAtomicAckETH(b[i.AtomicAckETH:], g.r.Uint64())
	}
	if i.ImmDt != 0 {
		bth.PutImmDt(b[i.ImmDt:], g.r.Uint32())
	}
	if i.IETH != 0 {
		bth.PutIETH(b[i.IETH:], g.anyKey())
	}
	if i.DETH != 0 {
		bth.PutDETH(b[i.DETH:], p.qkey, p.srcQPN)
	}
}

// syndrome is usually an ACK.
func (g *Generator) syndrome() bth.Syndrome {
	switch g.r.IntN(8) {
	case 0:
		return bth.Syndrome(g.r.Uint32())
	case 1:
		return bth.NAKSyndrome(bth.NAKCode(g.r.IntN(6)))
	case 2:
		return bth.RNRSyndrome(uint8(g.r.IntN(32)))
	}
	return bth.ACKNoLimit
}

func (g *Generator) anyKey() bth.RKey {
	if k := g.r.IntN(len(g.t.Others) + 2); k < len(g.t.Others) {
		return g.t.Others[k].RKey
	} else if k == len(g.t.Others) {
		return g.t.RKey
	}
	return bth.RKey(g.r.Uint32())
}

func (g *Generator) note(f string, args ...any) {
	g.what = append(g.what, fmt.Sprintf(f, args...))
}
