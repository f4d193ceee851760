package packets

import (
	"encoding/binary"
	"math"

	"github.com/gorxe/gorxe/bth"
)

// Class is a kind of packets that RoCE stacks are known to have mishandled.
type Class struct {
	Name string // a few words, unique
	make func(g *Generator, emit func(f []byte))
}

// Classes returns all classes, always in the same order. Most of them are the kinds of faults that
// the kernel's rxe had: lengths that underflow when pad and ICRC are subtracted, lengths in headers
// that disagree with those of packets, headers that a packet lacks, messages out of order.
func Classes() []Class { return classes }

var classes = []Class{
	{"truncated headers", truncatedHeaders},
	{"pad longer than payload", padUnderflow},
	{"payload and DMA length differ", dmaMismatch},
	{"DMA length out of range", dmaRange},
	{"payload and path MTU differ", mtuMismatch},
	{"atomic operand", atomicOperand},
	{"ATOMIC WRITE of wrong length", atomicWriteLength},
	{"FLUSH with wrong type or range", flushRange},
	{"READ response of wrong length", readResponse},
	{"atomic response without request", atomicResponse},
	{"ACK outside the window", ackWindow},
	{"request outside the window", requestWindow},
	{"message out of order", messageOrder},
	{"invalidate with wrong key", invalidate},
	{"datagram without headers", datagramHeaders},
	{"any opcode", anyOpcode},
	{"multicast QPN", multicastQPN},
	{"MAD with wrong header", madHeader},
	{"MAD with wrong length", madLength},
	{"CM message with random fields", madFields},
	{"ICRC missing or wrong", icrc},
	{"UDP and IP lengths", udpLength},
	{"IP fragments", fragments},
	{"IP options and extension headers", extensionHeaders},
	{"VLAN tags", vlanTags},
	{"false selective acknowledgment", selectiveAck},
	{"packets after a gap", afterGap},
	{"CNPs and ECN marks", congestion},
}

// Make makes a short sequence of frames of a class. Each frame is valid only during the call of
// emit.
func (g *Generator) Make(c *Class, emit func(f []byte)) { c.make(g, emit) }

// begin starts a valid packet with an opcode.
func (g *Generator) begin(o bth.Opcode) *packet {
	g.n++
	g.what = g.what[:0]
	g.fill(o)
	return &g.pkt
}

// sized sets the payload and a pad that fits.
func (p *packet) sized(n int) {
	p.payload = n
	p.f.PadCount = uint8(-n & 3)
}

// end writes the packet, lets the edits change it, and emits it in a frame.
func (g *Generator) end(emit func([]byte), edits ...func(p []byte)) {
	b, _, short := g.whole(edits...)
	emit(b[:max(0, len(b)-short)])
}

func (g *Generator) whole(edits ...func(p []byte)) (b []byte, n, short int) {
	g.pkt.payload = min(g.pkt.payload, maxPayload)
	p := g.write(g.buf[bth.MaxNetHeader:])
	for _, e := range edits {
		e(p)
	}
	g.t.PSN = g.pkt.next
	return g.frame(p)
}

// pick returns one of the values.
func pick[T any](g *Generator, v ...T) T { return v[g.r.IntN(len(v))] }

var rcRequests = []bth.Opcode{
	bth.RCSendFirst, bth.RCSendMiddle, bth.RCSendLast, bth.RCSendLastImm, bth.RCSendOnly,
	bth.RCSendOnlyImm, bth.RCWriteFirst, bth.RCWriteMiddle, bth.RCWriteLast, bth.RCWriteLastImm,
	bth.RCWriteOnly, bth.RCWriteOnlyImm, bth.RCReadRequest, bth.RCCmpSwap, bth.RCFetchAdd,
	bth.RCSendLastInv, bth.RCSendOnlyInv, bth.RCFlush, bth.RCAtomicWrite,
}

var rcResponses = []bth.Opcode{
	bth.RCReadResponseFirst, bth.RCReadResponseMiddle, bth.RCReadResponseLast,
	bth.RCReadResponseOnly, bth.RCAck, bth.RCAtomicAck,
}

// request draws a request opcode of the target's transport.
func (g *Generator) request() bth.Opcode {
	switch g.t.Transport {
	case bth.UD:
		return pick(g, bth.UDSendOnly, bth.UDSendOnlyImm)
	case bth.UC:
		return bth.UCSendFirst + bth.Opcode(g.r.IntN(int(bth.UCWriteOnlyImm-bth.UCSendFirst)+1))
	}
	return pick(g, rcRequests...)
}

// truncatedHeaders are packets that end within their headers, or just after them.
func truncatedHeaders(g *Generator, emit func([]byte)) {
	o := g.request()
	if g.r.IntN(3) == 0 {
		o = pick(g, rcResponses...)
	}
	p := g.begin(o)
	p.sized(0)
	p.cut = g.r.IntN(int(p.info.HeaderLen) + 1)
	p.next = g.t.PSN
	g.note("%d bytes missing", p.cut)
	g.end(emit)
}

// padUnderflow are packets whose pad is longer than what follows the headers.
func padUnderflow(g *Generator, emit func([]byte)) {
	p := g.begin(pick(g, append([]bth.Opcode{g.request()}, rcResponses...)...))
	p.payload = g.r.IntN(3)
	p.f.PadCount = uint8(1 + g.r.IntN(3))
	p.cut = g.r.IntN(int(p.f.PadCount) + p.payload + 1)
	g.note("pad count %d, %d bytes after the headers", p.f.PadCount,
		p.payload+int(p.f.PadCount)-p.cut)
	g.end(emit)
}

func dmaMismatch(g *Generator, emit func([]byte)) {
	p := g.begin(pick(g, bth.RCWriteOnly, bth.RCWriteOnlyImm, bth.RCWriteFirst))
	p.sized(g.r.IntN(int(g.t.MTU) + 1))
	p.dma = pick(g, 0, 1, uint32(p.payload)+1, uint32(p.payload)-1, uint32(g.t.Len)+1, 1<<31)
	g.note("%d bytes, DMA length %#x", p.payload, p.dma)
	g.end(emit)
	if p.f.Opcode == bth.RCWriteFirst {
		p := g.begin(bth.RCWriteLast)
		p.sized(g.r.IntN(int(g.t.MTU) + 1))
		g.note("%d bytes", p.payload)
		g.end(emit)
	}
}

func dmaRange(g *Generator, emit func([]byte)) {
	p := g.begin(pick(g, bth.RCReadRequest, bth.RCWriteFirst, bth.RCWriteOnly))
	p.dma = pick(g, g.t.Len+1, 1<<31, 1<<31+1, math.MaxUint32, math.MaxUint32-3, g.r.Uint32())
	p.va = pick(g, g.t.Addr, g.t.Addr+uint64(g.t.Len), g.t.Addr-1, 0, math.MaxUint64,
		math.MaxUint64-uint64(p.dma)+1, g.r.Uint64())
	p.next = g.t.PSN.Next()
	g.note("address %#x, DMA length %#x", p.va, p.dma)
	g.end(emit)
}

func mtuMismatch(g *Generator, emit func([]byte)) {
	mtu := int(g.t.MTU)
	o := pick(g, bth.RCSendFirst, bth.RCSendOnly, bth.RCWriteFirst)
	switch g.t.Transport {
	case bth.UD:
		o = bth.UDSendOnly
	case bth.UC:
		o = pick(g, bth.UCSendFirst, bth.UCWriteFirst)
	}
	p := g.begin(o)
	p.sized(pick(g, 0, 1, mtu-1, mtu+1, mtu+4, 2*mtu, maxPayload))
	g.note("%d bytes at path MTU %d", p.payload, mtu)
	g.end(emit)
	if p.info.End {
		return
	}
	p = g.begin(o + 1) // MIDDLE
	p.sized(pick(g, 0, mtu-1, mtu+1))
	g.note("%d bytes at path MTU %d", p.payload, mtu)
	g.end(emit)
}

func atomicOperand(g *Generator, emit func([]byte)) {
	p := g.begin(pick(g, bth.RCCmpSwap, bth.RCFetchAdd))
	p.va = g.t.Addr + uint64(1+g.r.IntN(7))
	if g.r.IntN(3) == 0 {
		p.va = g.t.Addr + uint64(g.t.Len) - uint64(g.r.IntN(8))
	}
	if g.r.IntN(3) == 0 {
		p.sized(1 + g.r.IntN(64))
	}
	g.note("address %#x, %d bytes after the header", p.va, p.payload)
	g.end(emit)
}

func atomicWriteLength(g *Generator, emit func([]byte)) {
	p := g.begin(bth.RCAtomicWrite)
	p.sized(pick(g, 0, 1, 4, 7, 8, 9, 16, int(g.t.MTU)))
	p.dma = pick(g, uint32(p.payload), 0, 8, math.MaxUint32)
	p.va = g.t.Addr + uint64(g.r.IntN(9))
	g.note("%d bytes, DMA length %d, address %#x", p.payload, p.dma, p.va)
	g.end(emit)
}

func flushRange(g *Generator, emit func([]byte)) {
	p := g.begin(bth.RCFlush)
	p.dma = pick(g, 0, 1, g.t.Len, g.t.Len+1, math.MaxUint32)
	if g.r.IntN(4) == 0 {
		p.sized(1 + g.r.IntN(64))
	}
	kind := g.r.Uint32()
	g.note("FETH %#x, DMA length %#x", kind, p.dma)
	g.end(emit, func(b []byte) {
		if len(b) >= bth.HeaderLen+bth.FETHLen {
			binary.BigEndian.PutUint32(b[bth.HeaderLen:], kind)
		}
	})
}

// readResponse are responses that no READ asked for, or of other lengths.
func readResponse(g *Generator, emit func([]byte)) {
	mtu := int(g.t.MTU)
	for range 1 + g.r.IntN(4) {
		p := g.begin(pick(g, rcResponses[:4]...))
		p.sized(pick(g, 0, 1, mtu-1, mtu, mtu+1, 2*mtu, maxPayload))
		if g.r.IntN(4) == 0 {
			p.f.PadCount ^= 1 + uint8(g.r.IntN(3))
		}
		g.note("%d bytes, pad count %d", p.payload, p.f.PadCount)
		g.end(emit)
	}
}

func atomicResponse(g *Generator, emit func([]byte)) {
	p := g.begin(bth.RCAtomicAck)
	p.cut = g.r.IntN(13)
	g.note("%d bytes missing", p.cut)
	g.end(emit)
}

func ackWindow(g *Generator, emit func([]byte)) {
	for range 1 + g.r.IntN(4) {
		p := g.begin(bth.RCAck)
		p.f.PSN = g.far()
		p.next = g.t.PSN
		s := g.r.Uint32()
		g.note("PSN %#x, syndrome %#x", uint32(p.f.PSN), uint8(s))
		g.end(emit, func(b []byte) {
			bth.PutAETH(b[bth.HeaderLen:], bth.Syndrome(s), bth.MSN(g.r.Uint32()&0xffffff))
		})
	}
}

// far draws a PSN that the target does not expect.
func (g *Generator) far() bth.PSN {
	const half = 1 << 23
	return g.t.PSN.Add(pick(g, 1, 2, 1<<24-1, 1<<24-2, 255, 256, 257, half-1, half, half+1,
		g.r.Uint32()) & 0xffffff)
}

func requestWindow(g *Generator, emit func([]byte)) {
	for range 1 + g.r.IntN(4) {
		p := g.begin(g.request())
		p.f.PSN = g.far()
		p.next = g.t.PSN
		g.note("PSN %#x", uint32(p.f.PSN))
		g.end(emit)
	}
}

// messageOrder are FIRST, MIDDLE, LAST and ONLY packets of SENDs and WRITEs in random order.
func messageOrder(g *Generator, emit func([]byte)) {
	base := bth.RCSendFirst
	if g.t.Transport == bth.UC {
		base = bth.UCSendFirst
	}
	for range 2 + g.r.IntN(6) {
		p := g.begin(base + bth.Opcode(g.r.IntN(int(bth.RCWriteOnlyImm)+1)))
		if !p.info.End && g.r.IntN(4) > 0 {
			p.sized(int(g.t.MTU))
		}
		g.end(emit)
	}
}

func invalidate(g *Generator, emit func([]byte)) {
	p := g.begin(pick(g, bth.RCSendOnlyInv, bth.RCSendLastInv))
	key := pick(g, 0, g.t.RKey, g.t.RKey^1, math.MaxUint32, bth.RKey(g.r.Uint32()))
	g.note("key %#x", uint32(key))
	at := int(p.info.IETH)
	g.end(emit, func(b []byte) { bth.PutIETH(b[at:], key) })
}

// datagramHeaders are UD packets that lack a DETH, are too long, or go to a QP that is not UD.
func datagramHeaders(g *Generator, emit func([]byte)) {
	p := g.begin(pick(g, bth.UDSendOnly, bth.UDSendOnlyImm))
	p.f.DestQP = pick(g, g.t.QPN, bth.QPNGSI, bth.QPNMulticast, 0)
	if p.f.DestQP == bth.QPNGSI {
		p.qkey = bth.QKeyGSI
	}
	p.next = g.t.PSN
	p.sized(pick(g, 0, 1, 39, 40, int(g.t.MTU), int(g.t.MTU)+1, maxPayload))
	if g.r.IntN(2) == 0 {
		p.cut = p.payload + int(p.f.PadCount) + g.r.IntN(9)
	}
	g.note("to QPN %d, %d bytes, %d missing", uint32(p.f.DestQP), p.payload, p.cut)
	g.end(emit)
}

func anyOpcode(g *Generator, emit func([]byte)) {
	p := g.begin(bth.Opcode(g.r.Uint32()))
	p.sized(pick(g, 0, 1, 4, 16, 28, g.r.IntN(int(g.t.MTU)+1)))
	if g.r.IntN(2) == 0 {
		p.cut = g.r.IntN(int(p.info.HeaderLen) + p.payload + 1)
	}
	g.note("opcode %#02x, %d bytes", uint8(p.f.Opcode), p.payload-p.cut)
	g.end(emit)
}

func multicastQPN(g *Generator, emit func([]byte)) {
	p := g.begin(pick(g, g.request(), bth.OpcodeNone, bth.CNP, bth.UDSendOnly))
	p.f.DestQP = bth.QPNMulticast
	p.sized(pick(g, 0, 4, 40))
	p.next = g.t.PSN
	g.end(emit)
}

func icrc(g *Generator, emit func([]byte)) {
	p := g.begin(g.request())
	p.sized(g.r.IntN(9))
	p.next = g.t.PSN
	b, n, _ := g.whole()
	switch g.r.IntN(3) {
	case 0: // the lengths agree with the frame, which has no ICRC
		b = b[:len(b)-1-g.r.IntN(bth.ICRCLen)]
		setLengths(b, n)
		g.note("ICRC cut off")
	case 1:
		binary.LittleEndian.PutUint32(b[len(b)-bth.ICRCLen:], pick(g, 0, math.MaxUint32,
			g.r.Uint32()))
		g.note("ICRC wrong")
	case 2:
		b = b[:n+g.r.IntN(bth.HeaderLen+bth.ICRCLen)]
		setLengths(b, n)
		g.note("%d bytes of UDP payload", len(b)-n)
	}
	emit(b)
}
